"""Downloads from the Hugging Face Hub with huggingface_hub: models by name, and files of data sets.

HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE work as in other Hugging Face libraries.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sleuth.errors import InputError

# owner/model, as on the Hub; a leading dot, tilde or slash makes it a path.
NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
WEIGHTS = "model.safetensors"
POLICY_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
TIMEOUT = 60.0  # seconds
BLOCK = 1 << 20

Report = Callable[[str, int], object]  # stage ("downloading" or "verifying") and bytes of the file


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a data set; large files have a SHA-256, small files only a git blob id."""

    path: str
    size: int
    sha256: str | None = None
    git_blob: str | None = None

    def matches(self, file: BinaryIO, start: int, report: Report) -> bool:
        """Check whether `file` contains this file's content at offset `start`."""
        digest = hashlib.sha256()
        if self.sha256 is None and self.git_blob is not None:
            digest = hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        file.seek(start)
        done = 0
        while block := file.read(min(BLOCK, self.size - done)):
            digest.update(block)
            done += len(block)
            report("verifying", done)
        return done == self.size and (self.sha256 or self.git_blob) in (None, digest.hexdigest())


def is_hub_name(model: str) -> bool:
    """Check whether this is a model name on the Hub (owner/model) and not an existing path."""
    return NAME.fullmatch(model) is not None and not Path(model).exists()


def download_policy(model: str, alternative: str) -> Path:
    """Return the folder of a causal model with tokenizer and safetensors weights, downloaded if not cached."""
    folder = cached_model(model)
    if folder is None or not _is_complete(folder):
        # Subfolders hold the same weights in other formats.
        folder = download_model(model, POLICY_FILES, alternative, ignore=["*/*"])
    if not _is_complete(folder):
        raise InputError(
            f"the model {model!r} is incomplete in {folder}: expected config.json, a tokenizer and every file of "
            f"{WEIGHTS}; {alternative}"
        )
    return folder


def cached_model(model: str) -> Path | None:
    """Return the folder of an earlier download, which may be incomplete; None if there is none."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (OSError, ValueError):
        return None


def download_model(model: str, patterns: Sequence[str], alternative: str, *, ignore: Sequence[str] = ()) -> Path:
    """Download the files of a model that match the patterns; errors recommend `alternative`."""
    from huggingface_hub import snapshot_download

    with _explain_hub_errors(f"the model {model!r}, which is not a local folder,", alternative):
        return Path(snapshot_download(model, allow_patterns=list(patterns), ignore_patterns=list(ignore)))


def _is_complete(folder: Path) -> bool:
    index = folder / f"{WEIGHTS}.index.json"
    weights = set(json.loads(index.read_bytes())["weight_map"].values()) if index.is_file() else {WEIGHTS}
    tokenizer = any((folder / name).is_file() for name in VOCABULARIES)
    return tokenizer and all((folder / name).is_file() for name in ("config.json", *weights))


def list_dataset(repo: str, alternative: str) -> list[HubFile]:
    """List the files of a data set with their sizes and checksums; errors recommend `alternative`."""
    from huggingface_hub import HfApi

    with _explain_hub_errors(f"the data set {repo}", alternative):
        files = HfApi().dataset_info(repo, files_metadata=True, timeout=TIMEOUT).siblings or []
        return [
            HubFile(file.rfilename, file.lfs.size, file.lfs.sha256)
            if file.lfs
            else HubFile(file.rfilename, file.size or 0, git_blob=file.blob_id)
            for file in files
        ]


def download_file(repo: str, file: HubFile, output: BinaryIO, start: int, report: Report, alternative: str) -> None:
    """Write a file of a data set into `output` at offset `start`, resuming after any content already there.

    Content with a wrong checksum is downloaded once more; a second mismatch raises InputError.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils.tqdm import silent_tqdm

    done = 0

    class Progress(silent_tqdm):
        def update(self, n: float | None = 1) -> None:
            nonlocal done
            done += int(n or 0)
            report("downloading", done)

    url = hf_hub_url(repo, file.path, repo_type="dataset")
    # A compressed response cannot be resumed.
    headers = {**build_hf_headers(library_name="sleuth"), "accept-encoding": "identity"}
    for _ in range(2):
        done = min(max(output.seek(0, os.SEEK_END) - start, 0), file.size)
        output.seek(start + done)
        if done < file.size:
            with _explain_hub_errors(f"{file.path} of the data set {repo}", alternative):
                # hf_hub_download starts over in the next process; this resumes.
                http_get(url, output, resume_size=done, headers=headers, tqdm_class=Progress)
        if output.seek(0, os.SEEK_END) >= start + file.size and file.matches(output, start, report):
            return
        output.seek(start)
        output.truncate()
    expected = file.sha256 or file.git_blob
    raise InputError(
        f"{file.path} of the data set {repo} was downloaded twice with a wrong checksum, expected {expected}; "
        f"{alternative}"
    )


@contextmanager
def _explain_hub_errors(subject: str, alternative: str) -> Iterator[None]:
    """Convert errors of huggingface_hub, including a full disk, into a one-line InputError."""
    import httpx2

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # huggingface_hub logs every retry
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        if isinstance(error, json.JSONDecodeError | TypeError | KeyError):
            # Networks with a login page answer every request with HTML.
            reason = f"the server did not answer like the Hub ({reason})"
        status = getattr(getattr(error, "response", None), "status_code", None)
        token = "set HF_TOKEN to a token with access, or " if status in (401, 403) else ""
        raise InputError(f"{subject} cannot be downloaded from the Hub ({reason}); {token}{alternative}") from error
