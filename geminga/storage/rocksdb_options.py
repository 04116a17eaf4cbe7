"""RocksDB's options, and the number of files that one database may have open."""

from __future__ import annotations

import sys

import rocksdict

from geminga.limits import KIB, MIB

if sys.platform != "win32":
    import resource

OPEN_FILES_MAX, OPEN_FILES_MIN = 64, 20
"""How many files a database keeps open; RocksDB accepts no lower limit than the latter."""
UNCOUNTED_FILES = 16
"""Files that are open for a while beside these: logs, the manifest, tables that are written or used by long
scans.
"""
WAL_BYTES_MAX_FACTOR = 4
"""The write-ahead log may grow to this many write buffers before RocksDB flushes the oldest."""


def open_files_max(process_files_max: int) -> int:
    """How many files one database keeps open, in a process that may have this many open."""
    return min(OPEN_FILES_MAX, max(OPEN_FILES_MIN, process_files_max // 16))


def database_files_max(process_files_max: int) -> int:
    """The limit of files that one database has open at any time."""
    return open_files_max(process_files_max) + UNCOUNTED_FILES


def _process_files_max() -> int:
    if sys.platform == "win32":
        return OPEN_FILES_MAX * 16
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_MAX * 16 if soft == resource.RLIM_INFINITY else soft


def database_options(cache: rocksdict.Cache, write_buffer_bytes: int) -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    # Cut the log at the first record that is not intact: by `check_logs` all behind it was never synced.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
    options.set_paranoid_checks(True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(WAL_BYTES_MAX_FACTOR * write_buffer_bytes)
    options.set_max_open_files(open_files_max(_process_files_max()))
    options.set_max_file_opening_threads(1)
    options.set_table_cache_num_shard_bits(2)
    options.set_max_background_jobs(2)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    # RocksDB's own diary: one small file, no periodic statistics.
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(8 * KIB)
    table.set_bloom_filter(10, False)
    # Indexes and filters live in the bounded cache too, so that memory does not grow with the data.
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(table)
    return options
