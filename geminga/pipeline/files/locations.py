"""Paths and URLs of files, taken apart; and Hadoop's settings of a file system as pyarrow's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from geminga.pipeline.errors import BadOption, PipelineError

FILE: Final = "file"
S3: Final = "s3"
HDFS: Final = "hdfs"
AZURE: Final = "abfs"
GOOGLE: Final = "gs"
_SCHEMES: Final = {
    "file": FILE,
    "s3": S3,
    "s3a": S3,
    "s3n": S3,
    "hdfs": HDFS,
    "viewfs": HDFS,
    "abfs": AZURE,
    "abfss": AZURE,
    "gs": GOOGLE,
    "gcs": GOOGLE,
}
"""What users write, and the file system that it is."""
KNOWN_SCHEMES: Final = tuple(_SCHEMES)
SETTINGS_PREFIXES: Final = ("fs.", "spark.hadoop.fs.")
"""How names of settings of file systems begin."""
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")
_ANONYMOUS: Final = "AnonymousAWSCredentialsProvider"


class Location(NamedTuple):
    """Where a file or directory is."""

    scheme: str
    """One of the constants above, or the scheme of another file system."""
    authority: str
    """Bucket, container@account or host:port; empty on this machine."""
    path: str
    """On this machine absolute, else what follows the authority, without slashes around it."""
    written: str
    """The scheme as it was given."""

    def __str__(self) -> str:
        return self.path if self.scheme == FILE else f"{self.written}://{self.authority}/{self.path}"


def parse(given: str) -> Location:
    """A path is one on this machine, made absolute. Raises `PipelineError`."""
    found = _URL.match(given)
    if found is None or found[1].lower() == FILE:
        return Location(
            FILE, "", os.path.abspath(given if found is None else "/" + given[found.end() :]), FILE
        )
    written = found[1].lower()
    scheme = _SCHEMES.get(written, written)
    rest = given[len(written) + 1 :]
    # A URL may leave out the authority, as hdfs:///path does; then the path begins at once.
    authority, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    path = path.strip("/")
    if not authority and scheme in (S3, GOOGLE, AZURE):
        raise PipelineError(f"{given}: no bucket is named; write {written}://BUCKET/PATH")
    if scheme == AZURE and "@" not in authority:
        raise PipelineError(
            f"{given}: no account is named; write {written}://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
        )
    return Location(scheme, authority, path, written)


def join(url: str, *names: str) -> str:
    """The URL of a file or directory below another one."""
    return "/".join([url.rstrip("/"), *names])


def without_settings(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options, and those among them that are settings of a file system, by their names in Hadoop."""
    left, settings = {}, {}
    for name, value in options.items():
        if name.startswith(SETTINGS_PREFIXES):
            settings[name.removeprefix("spark.hadoop.")] = value
        else:
            left[name] = value
    return left, settings


def s3_arguments(settings: Mapping[str, str], bucket: str) -> dict[str, Any]:
    """Arguments of `pyarrow.fs.S3FileSystem`. What is not set here comes from the environment
    (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, AWS_PROFILE) or the machine's
    role.
    Raises `BadOption`.
    """

    def setting(name: str) -> str | None:
        own = settings.get(f"fs.s3a.bucket.{bucket}.{name}")
        return own or settings.get(f"fs.s3a.{name}") or None

    arguments: dict[str, Any] = {
        "access_key": setting("access.key"),
        "secret_key": setting("secret.key"),
        "session_token": setting("session.token"),
        "region": setting("endpoint.region"),
    }
    if (arguments["access_key"] is None) != (arguments["secret_key"] is None):
        raise BadOption("fs.s3a.access.key and fs.s3a.secret.key belong together; give both or neither")
    if _ANONYMOUS in (setting("aws.credentials.provider") or "") and arguments["access_key"] is None:
        arguments["anonymous"] = True
    endpoint = setting("endpoint")
    if endpoint is not None:
        given = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        secure = setting("connection.ssl.enabled") != "false"
        arguments["scheme"] = given.scheme or ("https" if secure else "http")
        arguments["endpoint_override"] = given.netloc
        # pyarrow names the bucket in the path where an endpoint is given, which most such servers want.
        arguments["force_virtual_addressing"] = setting("path.style.access") == "false"
        arguments["region"] = arguments["region"] or "us-east-1"
    return {name: value for name, value in arguments.items() if value is not None}
