"""Values of the policies that are only stored and shown: as in `values.py`, one struct for each."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from geminga.broker.policies.values import Int32, Int64, PolicyRefused

SubscriptionAuthMode = Literal["None", "Prefix"]
AutoUpdateStrategy = Literal[
    "AutoUpdateDisabled",
    "Backward",
    "Forward",
    "Full",
    "AlwaysCompatible",
    "BackwardTransitive",
    "ForwardTransitive",
    "FullTransitive",
]
S3_DRIVERS = frozenset({"s3", "aws-s3"})
GCS_DRIVERS = frozenset({"google-cloud-storage"})
FILE_DRIVERS = frozenset({"filesystem"})
Text = str | UnsetType
Number = Int64 | UnsetType


class EntryFilters(msgspec.Struct, frozen=True):
    """Names of filters, separated by commas; no filter is installed here."""

    names: str = msgspec.field(default="", name="entryFilterNames")

    def __post_init__(self) -> None:
        for name in filter(None, self.names.split(",")):
            raise PolicyRefused(f"Entry filter '{name}' not found")


class OffloadPolicies(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where Pulsar would offload old ledgers. The defaults are Pulsar's."""

    offloaders_directory: str = "./offloaders"
    managed_ledger_offload_driver: Text = UNSET
    managed_ledger_offload_max_threads: Int32 = 2
    managed_ledger_offload_prefetch_rounds: Int32 = 1
    managed_ledger_offload_threshold_in_bytes: Number = UNSET
    managed_ledger_offload_threshold_in_seconds: Number = UNSET
    managed_ledger_offload_deletion_lag_in_millis: Number = UNSET
    managed_ledger_offloaded_read_priority: Text = UNSET
    managed_ledger_extra_configurations: dict[str, str] = {}
    s3_managed_ledger_offload_region: Text = UNSET
    s3_managed_ledger_offload_bucket: Text = UNSET
    s3_managed_ledger_offload_service_endpoint: Text = UNSET
    s3_managed_ledger_offload_max_block_size_in_bytes: Int32 = 67_108_864
    s3_managed_ledger_offload_read_buffer_size_in_bytes: Int32 = 1_048_576
    s3_managed_ledger_offload_credential_id: Text = UNSET
    s3_managed_ledger_offload_credential_secret: Text = UNSET
    s3_managed_ledger_offload_role: Text = UNSET
    s3_managed_ledger_offload_role_session_name: str = "pulsar-s3-offload"
    gcs_managed_ledger_offload_region: Text = UNSET
    gcs_managed_ledger_offload_bucket: Text = UNSET
    gcs_managed_ledger_offload_max_block_size_in_bytes: Int32 = 134_217_728
    gcs_managed_ledger_offload_read_buffer_size_in_bytes: Int32 = 1_048_576
    gcs_managed_ledger_offload_service_account_key_file: Text = UNSET
    file_system_profile_path: Text = UNSET
    file_system_uri: Text = msgspec.field(default=UNSET, name="fileSystemURI")
    managed_ledger_offload_bucket: Text = UNSET
    managed_ledger_offload_region: Text = UNSET
    managed_ledger_offload_service_endpoint: Text = UNSET
    managed_ledger_offload_max_block_size_in_bytes: Number = UNSET
    managed_ledger_offload_read_buffer_size_in_bytes: Number = UNSET
    s3_driver: bool = False
    gcs_driver: bool = False
    file_system_driver: bool = False

    def __post_init__(self) -> None:
        driver = str(self.managed_ledger_offload_driver).lower()
        kinds = {"s3_driver": S3_DRIVERS, "gcs_driver": GCS_DRIVERS, "file_system_driver": FILE_DRIVERS}
        for name, drivers in kinds.items():
            msgspec.structs.force_setattr(self, name, driver in drivers)


class ResourceGroup(msgspec.Struct, frozen=True, rename="camel"):
    """Rates that the namespaces of a group would share."""

    publish_rate_in_msgs: Int32 | UnsetType = UNSET
    publish_rate_in_bytes: Int64 | UnsetType = UNSET
    dispatch_rate_in_msgs: Int32 | UnsetType = UNSET
    dispatch_rate_in_bytes: Int64 | UnsetType = UNSET
    replication_dispatch_rate_in_msgs: Int64 | UnsetType = UNSET
    replication_dispatch_rate_in_bytes: Int64 | UnsetType = UNSET


class ResourceQuota(msgspec.Struct, frozen=True, rename="camel"):
    """The load that a bundle would count for if several brokers shared the load. The defaults
    are Pulsar's.
    """

    msg_rate_in: float = 40.0
    msg_rate_out: float = 120.0
    bandwidth_in: float = 100_000.0
    bandwidth_out: float = 300_000.0
    memory: float = 80.0
    dynamic: bool = True
