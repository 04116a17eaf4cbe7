"""Offload policies: flags and body, for namespaces and for topics. Stored and shown, without effect here."""

from __future__ import annotations

from typing import Any

from geminga.cli.arguments.options import duration_ms
from geminga.cli.verbs.rows.values import seconds, size_bytes
from geminga.cli.verbs.rows.verb import Flags, flag

BLOCK_BYTES = 64 * 2**20
BUFFER_BYTES = 2**20
PRIORITIES = ("tiered-storage-first", "bookkeeper-first")
OFFLOAD_FLAGS = (
    flag("--driver", "-d", required=True, help="aws-s3, google-cloud-storage, filesystem, azureblob"),
    flag("--region", "-r", help="region of the bucket"),
    flag("--bucket", "-b", help="where ledgers go"),
    flag("--endpoint", "-e", help="address of the storage"),
    flag("--aws-id", "-i", help="credential of S3"),
    flag("--aws-secret", "-s", help="credential of S3"),
    flag("--s3-role", "-ro", "--ro", help="role of S3"),
    flag("--s3-role-session-name", "-rsn", help="name of its session"),
    flag(
        "--maxBlockSize",
        "-mbs",
        "--maxBlockSizeInBytes",
        "-m",
        dest="block_bytes",
        type=size_bytes,
        default=BLOCK_BYTES,
        help="of a block: 32M, 64M (the default)",
    ),
    flag(
        "--readBufferSize",
        "-rbs",
        "--readBufferSizeInBytes",
        "-rb",
        dest="buffer_bytes",
        type=size_bytes,
        default=BUFFER_BYTES,
        help="of a read: 1M (the default), 5M",
    ),
    flag(
        "--offloadAfterElapsed",
        "-oae",
        "--offloadDeletionLagInMillis",
        "-dl",
        dest="deletion_lag_ms",
        type=duration_ms,
        help="when the local copy goes: 10m, 3h, 2d",
    ),
    flag(
        "--offloadAfterThreshold",
        "-oat",
        "--offloadThresholdInBytes",
        "-t",
        dest="threshold_bytes",
        type=size_bytes,
        help="from this size on: 10M, 5G",
    ),
    flag(
        "--offloadAfterThresholdInSeconds",
        "-oats",
        "--offloadThresholdInSeconds",
        "-ts",
        dest="threshold_s",
        type=seconds,
        help="from this age on: 10m, 3h, 2d",
    ),
    flag("--offloadedReadPriority", "-orp", choices=PRIORITIES, help="where to read what is in both"),
)


def offload_body(flags: Flags) -> dict[str, Any]:
    """As Pulsar's client sends it: the bucket in the fields of the driver's kind."""
    found = {
        "managedLedgerOffloadDriver": flags.driver,
        "managedLedgerOffloadThresholdInBytes": flags.threshold_bytes,
        "managedLedgerOffloadThresholdInSeconds": flags.threshold_s,
        "managedLedgerOffloadDeletionLagInMillis": flags.deletion_lag_ms,
        "managedLedgerOffloadedReadPriority": flags.offloadedReadPriority
        and flags.offloadedReadPriority.replace("-", "_").upper(),
    }
    if flags.driver.lower() in ("s3", "aws-s3"):
        found |= {
            "s3ManagedLedgerOffloadRegion": flags.region,
            "s3ManagedLedgerOffloadBucket": flags.bucket,
            "s3ManagedLedgerOffloadServiceEndpoint": flags.endpoint,
            "s3ManagedLedgerOffloadCredentialId": flags.aws_id,
            "s3ManagedLedgerOffloadCredentialSecret": flags.aws_secret,
            "s3ManagedLedgerOffloadRole": flags.s3_role,
            "s3ManagedLedgerOffloadRoleSessionName": flags.s3_role_session_name,
            "s3ManagedLedgerOffloadMaxBlockSizeInBytes": flags.block_bytes,
            "s3ManagedLedgerOffloadReadBufferSizeInBytes": flags.buffer_bytes,
        }
    elif flags.driver.lower() == "google-cloud-storage":
        found |= {
            "gcsManagedLedgerOffloadRegion": flags.region,
            "gcsManagedLedgerOffloadBucket": flags.bucket,
            "gcsManagedLedgerOffloadMaxBlockSizeInBytes": flags.block_bytes,
            "gcsManagedLedgerOffloadReadBufferSizeInBytes": flags.buffer_bytes,
        }
    return {key: value for key, value in found.items() if value is not None}
