"""On a CPU whose linear layers run by oneDNN, code that the user compiles keeps the compiler's own choice."""

import torch
from torch import nn

from simcse_hf.kernels import cpu


def test_a_compiled_layer_has_no_operation_that_the_compiler_cannot_lower():
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph.code)
        return graph

    layer = nn.Linear(4, 3)
    compiled = torch.compile(layer, backend=keep, dynamic=True)
    x = torch.randn(5, 4)
    with torch.inference_mode(), cpu.FastLinear():
        torch.testing.assert_close(compiled(x), layer(x))
    assert len(graphs) == 1 and "mkldnn" not in graphs[0]
