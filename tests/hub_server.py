"""A small model hub on loopback, for tests of pushing and loading with the real `huggingface_hub` client.

    with HubServer() as hub:
        HfApi(endpoint=hub.url, token=hub.token)...
        hub.repositories["org/name"].files("main")  # path -> bytes

It speaks what the client asks of a model repository: create, preupload, LFS batch and upload, commit on a branch,
listings, resolve with etags; and of data sets, which of them are benchmarks. Repositories live in memory. The client's
faster Xet protocol is not spoken: run clients with HF_HUB_DISABLE_XET=1.
"""

import base64
import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LFS_SUFFIXES = (".safetensors", ".bin", ".onnx")


def git_oid(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Repository:
    """Branches of commits; a commit is a dict of path -> bytes."""

    def __init__(self, private):
        self.private = private
        self.commits = {}
        self.branches = {}
        self.messages = []
        self.commit("main", {}, "initial commit")

    def commit(self, branch, files, message):
        oid = hashlib.sha1(repr((len(self.commits), branch, sorted(files))).encode()).hexdigest()
        self.commits[oid] = files
        self.branches[branch] = oid
        self.messages.append((branch, message))
        return oid

    def resolve(self, revision):
        """The commit that a branch or commit id stands for."""
        oid = self.branches.get(revision, revision)
        if oid not in self.commits:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return oid

    def files(self, revision="main"):
        return self.commits[self.resolve(revision)]


class Refusal(Exception):
    """The status, the code and the message of an answer to what cannot be done."""


class HubServer(ThreadingHTTPServer):
    """The server; a context manager that serves from a thread.

    Attributes:
        token: the one that may write, and read what is private.
        benchmarks: ids of the data sets that are registered as benchmarks.
        requests: (method, path) of every request, in order.
        errors: exceptions of the server's own, which a client would take for a broken connection.
        refusal: a [`Refusal`] that answers everything that would write.
        cut: a function (method, path) -> bool; where true, the connection is closed after half of the body was read.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.token = "hf_" + "t" * 34
        self.benchmarks = []
        self.repositories = {}
        self.blobs = {}
        self.requests = []
        self.errors = []
        self.refusal = None
        self.cut = lambda method, path: False
        self.lock = threading.Lock()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # a cut connection is meant
            self.errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _serve(self):
        parts = urlsplit(self.path)
        self.route, self.query = unquote(parts.path), parse_qs(parts.query)
        self.server.requests.append((self.command, self.route))
        length = int(self.headers.get("Content-Length") or 0)
        if self.server.cut(self.command, self.route):
            self.rfile.read(length // 2)
            self.close_connection = True
            self.connection.shutdown(2)
            return
        self.body = self.rfile.read(length)
        try:
            with self.server.lock:
                self._answer()
        except Refusal as refusal:
            status, code, message = refusal.args
            self._send(status, {"error": message}, X_Error_Code=code)

    def _answer(self):
        for method, pattern, answer in _ROUTES:
            found = re.fullmatch(pattern, self.route)
            if found and self.command in method:
                return answer(self, **found.groupdict())
        raise Refusal(404, "EntryNotFound", f"no route {self.command} {self.route}")

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def _send(self, status, content=b"", **headers):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    @property
    def _is_authorised(self):
        return self.headers.get("Authorization") == f"Bearer {self.server.token}"

    def _check_writer(self):
        if self.server.refusal:
            raise self.server.refusal
        if not self._is_authorised:
            raise Refusal(401, "Unauthorized", "Invalid username or password.")

    def _repository(self, repo, writes=False):
        if writes:
            self._check_writer()
        found = self.server.repositories.get(repo)
        if found is None or (found.private and not self._is_authorised):
            raise Refusal(404 if self._is_authorised else 401, "RepoNotFound", "Repository not found")
        return found

    # --- writing --------------------------------------------------------------------------------------------------

    def create(self):
        self._check_writer()
        asked = json.loads(self.body)
        repo = f"{asked.get('organization') or 'org'}/{asked['name']}"
        url = {"url": f"{self.server.url}/{repo}"}
        if repo in self.server.repositories:
            self._send(409, {"error": "You already created this model repo", **url})
            return
        self.server.repositories[repo] = Repository(private=asked.get("visibility") == "private")
        self._send(200, url)

    def validate_yaml(self):
        assert json.loads(self.body)["content"].startswith("---\n"), "a card without metadata"
        self._send(200, {"errors": [], "warnings": []})

    def branch(self, repo, revision):
        repository = self._repository(repo, writes=True)
        if revision.startswith("refs/"):
            raise Refusal(400, "BadRequest", "Invalid reference for a branch")
        if revision in repository.branches:
            raise Refusal(409, "Conflict", "the branch exists")
        repository.branches[revision] = repository.branches["main"]
        self._send(200, {})

    def preupload(self, repo, revision):
        existing = self._repository(repo, writes=True).files(revision)
        answers = []
        for file in json.loads(self.body)["files"]:
            path, large = file["path"], file["path"].endswith(LFS_SUFFIXES)
            answer = {
                "path": path,
                "uploadMode": "lfs" if large else "regular",
                "shouldIgnore": False,
            }
            if path in existing:
                answer["oid"] = hashlib.sha256(existing[path]).hexdigest() if large else git_oid(existing[path])
            answers.append(answer)
        self._send(200, {"files": answers})

    def lfs_batch(self, repo):
        self._repository(repo, writes=True)
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.server.blobs:
                answer["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{wanted['oid']}"}}
            objects.append(answer)
        self._send(200, {"transfer": "basic", "objects": objects})

    def lfs_upload(self, oid):
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.server.blobs[oid] = self.body
        self._send(200)

    def commit(self, repo, revision):
        repository = self._repository(repo, writes=True)
        files = dict(repository.files(revision))
        for line in self.body.splitlines():
            key, value = json.loads(line).values()
            if key == "header":
                message = value["summary"]
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
        oid = repository.commit(revision, files, message)
        self._send(200, {"commitOid": oid, "commitUrl": f"{self.server.url}/{repo}/commit/{oid}"})

    # --- reading --------------------------------------------------------------------------------------------------

    def datasets(self):
        found = self.server.benchmarks if self.query.get("filter") == ["benchmark:official"] else []
        self._send(200, [{"id": name} for name in found])

    def info(self, repo, revision="main"):
        repository = self._repository(repo)
        oid = repository.resolve(revision)
        siblings = [{"rfilename": path} for path in repository.commits[oid]]
        self._send(200, {"id": repo, "sha": oid, "siblings": siblings})

    def tree(self, repo, revision, folder):
        folder = (folder or "").strip("/")
        entries = [
            {
                "type": "file",
                "path": path,
                "size": len(content),
                "oid": git_oid(content),
            }
            for path, content in self._repository(repo).files(revision).items()
            if not folder or path.startswith(f"{folder}/")
        ]
        self._send(200, entries)

    def resolve(self, repo, revision, path):
        repository = self._repository(repo)
        oid = repository.resolve(revision)
        content = repository.commits[oid].get(path)
        if content is None:
            self._send(404, X_Repo_Commit=oid, X_Error_Code="EntryNotFound")
            return
        digest = hashlib.sha256(content).hexdigest() if path.endswith(LFS_SUFFIXES) else git_oid(content)
        self._send(200, content, ETag=f'"{digest}"', X_Repo_Commit=oid)


_REPO = r"(?P<repo>[^/]+/[^/]+?)"
_REVISION = r"(?P<revision>refs/pr/\d+|[^/]+)"
_ROUTES = [
    (("POST",), r"/api/repos/create", _Handler.create),
    (("GET",), r"/api/datasets", _Handler.datasets),
    (("POST",), r"/api/validate-yaml", _Handler.validate_yaml),
    (("POST",), rf"/api/models/{_REPO}/branch/{_REVISION}", _Handler.branch),
    (("POST",), rf"/api/models/{_REPO}/preupload/{_REVISION}", _Handler.preupload),
    (("POST",), rf"/api/models/{_REPO}/commit/{_REVISION}", _Handler.commit),
    (("POST",), rf"/{_REPO}\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    (("PUT",), r"/lfs/(?P<oid>\w+)", _Handler.lfs_upload),
    (("GET",), rf"/api/models/{_REPO}/tree/{_REVISION}(?P<folder>/.*)?", _Handler.tree),
    (("GET",), rf"/api/models/{_REPO}/revision/{_REVISION}", _Handler.info),
    (("GET",), rf"/api/models/{_REPO}", _Handler.info),
    (("GET", "HEAD"), rf"/{_REPO}/resolve/{_REVISION}/(?P<path>.+)", _Handler.resolve),
]
