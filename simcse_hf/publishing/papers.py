"""The papers that a card cites, as BibTeX."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper: `venue` is its proceedings, None for one that is on arXiv alone."""

    key: str
    title: str
    authors: str
    year: int
    url: str
    venue: str | None = None

    def bibtex(self) -> str:
        kind, place = "inproceedings", ("booktitle", self.venue)
        if self.venue is None:
            kind, place = "article", ("journal", f"arXiv preprint arXiv:{self.url.rpartition('/')[2]}")
        entries = [("title", self.title), ("author", self.authors), place, ("year", self.year), ("url", self.url)]
        lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in entries)
        return f"@{kind}{{{self.key},\n{lines}\n}}"


_EMNLP = "Proceedings of the {} Conference on Empirical Methods in Natural Language Processing"
_ARXIV = "https://arxiv.org/abs/"

PAPERS = {
    "simcse": Paper(
        "gao-etal-2021-simcse",
        "{SimCSE}: Simple Contrastive Learning of Sentence Embeddings",
        "Gao, Tianyu and Yao, Xingcheng and Chen, Danqi",
        2021,
        "https://aclanthology.org/2021.emnlp-main.552",
        _EMNLP.format(2021),
    ),
    "liao": Paper(
        "liao-2021-supervised",
        "Sentence Embeddings using Supervised Contrastive Learning",
        "Liao, Danqi",
        2021,
        f"{_ARXIV}2106.04791",
    ),
    "sbert": Paper(
        "reimers-gurevych-2019-sentence",
        "Sentence-{BERT}: Sentence Embeddings using {S}iamese {BERT}-Networks",
        "Reimers, Nils and Gurevych, Iryna",
        2019,
        f"{_ARXIV}1908.10084",
        _EMNLP.format(2019),
    ),
    "non_contrastive": Paper(
        "farina-pappadopulo-2023-non",
        "Non-contrastive sentence representations via self-supervision",
        "Farina, Marco and Pappadopulo, Duccio",
        2023,
        f"{_ARXIV}2310.17690",
    ),
    "barlow_twins": Paper(
        "zbontar-etal-2021-barlow",
        "{Barlow Twins}: Self-Supervised Learning via Redundancy Reduction",
        "Zbontar, Jure and Jing, Li and Misra, Ishan and LeCun, Yann and Deny, St{\\'e}phane",
        2021,
        f"{_ARXIV}2103.03230",
        "Proceedings of the 38th International Conference on Machine Learning",
    ),
    "vicreg": Paper(
        "bardes-etal-2022-vicreg",
        "{VICReg}: Variance-Invariance-Covariance Regularization for Self-Supervised Learning",
        "Bardes, Adrien and Ponce, Jean and LeCun, Yann",
        2022,
        f"{_ARXIV}2105.04906",
        "International Conference on Learning Representations",
    ),
    "contrastive_tension": Paper(
        "carlsson-etal-2021-semantic",
        "Semantic Re-tuning with Contrastive Tension",
        'Carlsson, Fredrik and Gyllensten, Amaru Cuba and Gogoulou, Evangelia and Hellqvist, Erik Ylip{\\"a}{\\"a} '
        "and Sahlgren, Magnus",
        2021,
        "https://openreview.net/forum?id=Ov_sMNau-PF",
        "International Conference on Learning Representations",
    ),
    "is_bert": Paper(
        "zhang-etal-2020-unsupervised",
        "An Unsupervised Sentence Embedding Method by Mutual Information Maximization",
        "Zhang, Yan and He, Ruidan and Liu, Zuozhu and Lim, Kwan Hui and Bing, Lidong",
        2020,
        f"{_ARXIV}2009.12061",
        _EMNLP.format(2020),
    ),
    "declutr": Paper(
        "giorgi-etal-2021-declutr",
        "{DeCLUTR}: Deep Contrastive Learning for Unsupervised Textual Representations",
        "Giorgi, John and Nitski, Osvald and Wang, Bo and Bader, Gary",
        2021,
        f"{_ARXIV}2006.03659",
        "Proceedings of the 59th Annual Meeting of the Association for Computational Linguistics",
    ),
    "esimcse": Paper(
        "wu-etal-2022-esimcse",
        "{ESimCSE}: Enhanced Sample Building Method for Contrastive Learning of Unsupervised Sentence Embedding",
        "Wu, Xing and Gao, Chaochen and Zang, Liangjun and Han, Jizhong and Wang, Zhongyuan and Hu, Songlin",
        2022,
        f"{_ARXIV}2109.04380",
        "Proceedings of the 29th International Conference on Computational Linguistics",
    ),
    "promptbert": Paper(
        "jiang-etal-2022-promptbert",
        "{PromptBERT}: Improving {BERT} Sentence Embeddings with Prompts",
        "Jiang, Ting and Jiao, Jian and Huang, Shaohan and Zhang, Zihan and Wang, Deqing and Zhuang, Fuzhen and "
        "Wei, Furu and Huang, Haizhen and Deng, Denvy and Zhang, Qi",
        2022,
        f"{_ARXIV}2201.04337",
        _EMNLP.format(2022),
    ),
    "diffcse": Paper(
        "chuang-etal-2022-diffcse",
        "{DiffCSE}: Difference-based Contrastive Learning for Sentence Embeddings",
        "Chuang, Yung-Sung and Dangovski, Rumen and Luo, Hongyin and Zhang, Yang and Chang, Shiyu and "
        "Solja{\\v{c}}i{\\'c}, Marin and Li, Shang-Wen and Yih, Wen-tau and Kim, Yoon and Glass, James",
        2022,
        f"{_ARXIV}2204.10298",
        "Proceedings of the 2022 Conference of the North American Chapter of the Association for Computational "
        "Linguistics",
    ),
    "eda": Paper(
        "wei-zou-2019-eda",
        "{EDA}: Easy Data Augmentation Techniques for Boosting Performance on Text Classification Tasks",
        "Wei, Jason and Zou, Kai",
        2019,
        f"{_ARXIV}1901.11196",
        _EMNLP.format(2019),
    ),
    "matryoshka": Paper(
        "kusupati-etal-2022-matryoshka",
        "{Matryoshka} Representation Learning",
        "Kusupati, Aditya and Bhatt, Gantavya and Rege, Aniket and Wallingford, Matthew and Sinha, Aditya and "
        "Ramanujan, Vivek and Howard-Snyder, William and Chen, Kaifeng and Kakade, Sham and Jain, Prateek and "
        "Farhadi, Ali",
        2022,
        f"{_ARXIV}2205.13147",
        "Advances in Neural Information Processing Systems",
    ),
    "gradcache": Paper(
        "gao-etal-2021-scaling",
        "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup",
        "Gao, Luyu and Zhang, Yunyi and Han, Jiawei and Callan, Jamie",
        2021,
        f"{_ARXIV}2101.06983",
        "Proceedings of the 6th Workshop on Representation Learning for NLP",
    ),
    "whitening": Paper(
        "su-etal-2021-whitening",
        "Whitening Sentence Representations for Better Semantics and Faster Retrieval",
        "Su, Jianlin and Cao, Jiarun and Liu, Weijie and Ou, Yangyiwen",
        2021,
        f"{_ARXIV}2103.15316",
    ),
    "flow": Paper(
        "li-etal-2020-sentence",
        "On the Sentence Embeddings from Pre-trained Language Models",
        "Li, Bohan and Zhou, Hao and He, Junxian and Wang, Mingxuan and Yang, Yiming and Li, Lei",
        2020,
        f"{_ARXIV}2011.05864",
        _EMNLP.format(2020),
    ),
}


def bibtex_of(names: Iterable[str]) -> str:
    """The entries of papers by their names in [`PAPERS`], each once, in the order given."""
    return "\n\n".join(PAPERS[name].bibtex() for name in dict.fromkeys(names))
