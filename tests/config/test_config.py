"""Configuration: four sources, one winner, and no value or key that is silently wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from geminga.config import file as config_file
from geminga.config import values as config_values
from geminga.config.config import BUCKET_TRACKER, IN_MEMORY_TRACKER, Config, ConfigError
from geminga.config.file import Property
from geminga.config.loading import load
from geminga.config.memory_budget import PROCESS_BYTES, SETTINGS, memory_parts
from geminga.limits import MIB

# The names of the stock `conf/standalone.conf`, newest and older ones.
STOCK_STANDALONE_KEYS = """
metadataStoreUrl metadataStoreConfigPath configurationMetadataStoreUrl brokerServicePort webServicePort
bindAddress bindAddresses advertisedAddress haProxyProtocolEnabled numIOThreads numOrderedExecutorThreads
numHttpServerThreads numExecutorThreadPoolSize numCacheExecutorThreadPoolSize maxConcurrentHttpRequests
clusterName failureDomainsEnabled metadataStoreSessionTimeoutMillis metadataStoreOperationTimeoutSeconds
metadataStoreCacheExpirySeconds brokerShutdownTimeoutMs skipBrokerShutdownOnOOM backlogQuotaCheckEnabled
backlogQuotaCheckIntervalInSeconds backlogQuotaDefaultLimitGB backlogQuotaDefaultLimitSecond
ttlDurationDefaultInSeconds brokerDeleteInactiveTopicsEnabled brokerDeleteInactiveTopicsFrequencySeconds
forceDeleteTenantAllowed forceDeleteNamespaceAllowed maxPendingPublishRequestsPerConnection
messageExpiryCheckIntervalInMinutes maxMessageSizeCheckIntervalInSeconds
activeConsumerFailoverDelayTimeMillis subscriptionExpirationTimeMinutes
subscriptionRedeliveryTrackerEnabled subscriptionKeySharedUseConsistentHashing
subscriptionKeySharedConsistentHashingReplicaPoints subscriptionExpiryCheckIntervalInMinutes
brokerDeduplicationEnabled brokerDeduplicationMaxNumberOfProducers brokerDeduplicationEntriesInterval
brokerDeduplicationProducerInactivityTimeoutMinutes defaultNumberOfNamespaceBundles maxTopicsPerNamespace
isAllowAutoUpdateSchemaEnabled clientLibraryVersionCheckEnabled clientLibraryVersionCheckAllowUnversioned
statusFilePath maxUnackedMessagesPerConsumer maxUnackedMessagesPerSubscription maxUnackedMessagesPerBroker
maxUnackedMessagesPerSubscriptionOnBrokerBlocked topicPublisherThrottlingTickTimeMillis
preciseTopicPublishRateLimiterEnable brokerPublisherThrottlingTickTimeMillis
brokerPublisherThrottlingMaxMessageRate brokerPublisherThrottlingMaxByteRate
dispatchThrottlingRatePerTopicInMsg dispatchThrottlingRatePerTopicInByte
dispatchThrottlingOnBatchMessageEnabled dispatchThrottlingRateRelativeToPublishRate
dispatchThrottlingOnNonBacklogConsumerEnabled dispatcherReadFailureBackoffInitialTimeInMs
dispatcherReadFailureBackoffMaxTimeInMs dispatcherReadFailureBackoffMandatoryStopTimeInMs
preciseDispatcherFlowControl maxConcurrentLookupRequest maxConcurrentTopicLoadRequest
maxConcurrentNonPersistentMessagePerConnection numWorkerThreadsForNonPersistentTopic
enablePersistentTopics enableNonPersistentTopics maxProducersPerTopic maxSameAddressProducersPerTopic
encryptionRequireOnProducer maxConsumersPerTopic maxSameAddressConsumersPerTopic maxSubscriptionsPerTopic
maxConsumersPerSubscription maxNumPartitionsPerPartitionedTopic
enableBrokerSideSubscriptionPatternEvaluation subscriptionPatternMaxLength metadataStoreBatchingEnabled
metadataStoreBatchingMaxDelayMillis metadataStoreBatchingMaxOperations metadataStoreBatchingMaxSizeKb
tlsEnabled tlsCertRefreshCheckDurationSec tlsCertificateFilePath tlsKeyFilePath tlsTrustCertsFilePath
tlsAllowInsecureConnection tlsProtocols tlsCiphers tlsRequireTrustedClientCertOnConnect tlsProvider
webServiceTlsProvider tlsEnabledWithKeyStore tlsKeyStoreType tlsKeyStore tlsKeyStorePassword
tlsTrustStoreType tlsTrustStore tlsTrustStorePassword brokerClientTlsEnabled
brokerClientTlsEnabledWithKeyStore brokerClientSslProvider brokerClientTrustCertsFilePath
brokerClientKeyFilePath brokerClientCertificateFilePath brokerClientTlsKeyStoreType
brokerClientTlsKeyStore brokerClientTlsKeyStorePassword brokerClientTlsTrustStoreType
brokerClientTlsTrustStore brokerClientTlsTrustStorePassword brokerClientTlsCiphers
brokerClientTlsProtocols systemTopicEnabled schemaRegistryCompatibilityCheckers
systemTopicSchemaCompatibilityStrategy topicLevelPoliciesEnabled topicFencingTimeoutSeconds proxyRoles
authenticateOriginalAuthData authenticationEnabled authenticationProviders authorizationEnabled
authorizationProvider authorizationAllowWildcardsMatching superUserRoles brokerClientAuthenticationPlugin
brokerClientAuthenticationParameters athenzDomainNames anonymousUserRole basicAuthConf tokenSecretKey
tokenPublicKey tokenAuthClaim tokenAudienceClaim tokenAudience bookkeeperClientAuthenticationPlugin
bookkeeperClientAuthenticationParametersName bookkeeperClientAuthenticationParameters
bookkeeperClientTimeoutInSeconds bookkeeperClientNumWorkerThreads bookkeeperClientNumIoThreads
bookkeeperClientSeparatedIoThreadsEnabled bookkeeperClientSpeculativeReadTimeoutInMillis
bookkeeperNumberOfChannelsPerBookie bookkeeperClientHealthCheckEnabled
bookkeeperClientHealthCheckIntervalSeconds bookkeeperClientHealthCheckErrorThresholdPerInterval
bookkeeperClientHealthCheckQuarantineTimeInSeconds bookkeeperClientQuarantineRatio
bookkeeperClientRackawarePolicyEnabled bookkeeperClientRegionawarePolicyEnabled
bookkeeperClientMinNumRacksPerWriteQuorum bookkeeperClientEnforceMinNumRacksPerWriteQuorum
bookkeeperClientReorderReadSequenceEnabled bookkeeperClientIsolationGroups
bookkeeperClientSecondaryIsolationGroups bookkeeperClientMinAvailableBookiesInIsolationGroups
bookkeeperTLSProviderFactoryClass bookkeeperTLSClientAuthentication bookkeeperTLSKeyFileType
bookkeeperTLSTrustCertTypes bookkeeperTLSKeyStorePasswordPath bookkeeperTLSTrustStorePasswordPath
bookkeeperTLSKeyFilePath bookkeeperTLSCertificateFilePath bookkeeperTLSTrustCertsFilePath
bookkeeperDiskWeightBasedPlacementEnabled bookkeeperExplicitLacIntervalInMills bookkeeperUseV2WireProtocol
bookkeeperClientExposeStatsToPrometheus bookkeeperClientLimitStatsLogging managedLedgerDefaultEnsembleSize
managedLedgerDefaultWriteQuorum managedLedgerDefaultAckQuorum managedLedgerCursorPositionFlushSeconds
managedLedgerDigestType managedLedgerNumSchedulerThreads managedLedgerCacheSizeMB
managedLedgerCacheCopyEntries managedLedgerCacheEvictionWatermark managedLedgerCacheEvictionFrequency
managedLedgerCacheEvictionTimeThresholdMillis managedLedgerCursorBackloggedThreshold
managedLedgerDefaultMarkDeleteRateLimit managedLedgerMaxEntriesPerLedger
managedLedgerMinLedgerRolloverTimeMinutes managedLedgerMaxLedgerRolloverTimeMinutes
managedLedgerCursorMaxEntriesPerLedger managedLedgerCursorRolloverTimeInSeconds
managedLedgerMaxSizePerLedgerMbytes managedLedgerMaxUnackedRangesToPersist
managedLedgerMaxUnackedRangesToPersistInMetadataStore autoSkipNonRecoverableData
managedLedgerMetadataOperationsTimeoutSeconds managedLedgerReadEntryTimeoutSeconds
managedLedgerAddEntryTimeoutSeconds managedLedgerNewEntriesCheckDelayInMillis
managedLedgerMinimumBacklogCursorsForCaching managedLedgerMinimumBacklogEntriesForCaching
managedLedgerMaxBacklogBetweenCursorsForCaching managedLedgerUnackedRangesOpenCacheSetEnabled
managedLedgerPrometheusStatsLatencyRolloverSeconds managedLedgerTraceTaskExecution bookieId
loadManagerClassName loadBalancerEnabled loadBalancerReportUpdateThresholdPercentage
loadBalancerReportUpdateMinIntervalMillis loadBalancerReportUpdateMaxIntervalMinutes
loadBalancerHostUsageCheckIntervalMinutes loadBalancerSheddingIntervalMinutes
loadBalancerSheddingGracePeriodMinutes loadBalancerBrokerMaxTopics
loadBalancerResourceQuotaUpdateIntervalMinutes loadBalancerAutoBundleSplitEnabled
loadBalancerAutoUnloadSplitBundlesEnabled loadBalancerNamespaceBundleMaxTopics
loadBalancerNamespaceBundleMaxSessions loadBalancerNamespaceBundleMaxMsgRate
loadBalancerNamespaceBundleMaxBandwidthMbytes loadBalancerNamespaceMaximumBundles
loadBalancerNamespaceBundleSplitIntervalMinutes loadBalancerBrokerThresholdShedderPercentage
loadBalancerHistoryResourcePercentage loadBalancerBandwithInResourceWeight
loadBalancerBandwithOutResourceWeight loadBalancerCPUResourceWeight loadBalancerMemoryResourceWeight
loadBalancerDirectMemoryResourceWeight loadBalancerBundleUnloadMinThroughputThreshold
namespaceBundleUnloadingTimeoutMs replicationMetricsEnabled replicationConnectionsPerBroker
replicationProducerQueueSize replicationPolicyCheckDurationSeconds defaultRetentionTimeInMinutes
defaultRetentionSizeInMB keepAliveIntervalSeconds webSocketServiceEnabled webSocketNumIoThreads
webSocketConnectionsPerBroker webSocketSessionIdleTimeoutMillis webSocketMaxTextFrameSize
exposeTopicLevelMetricsInPrometheus metricsServletTimeoutMs jvmGCMetricsLoggerClassName
exposePublisherStats exposePreciseBacklogInPrometheus splitTopicAndPartitionLabelInPrometheus
aggregatePublisherStatsByProducerName schemaRegistryStorageClassName isSchemaValidationEnforced
schemaCompatibilityStrategy narExtractionDirectory globalZookeeperServers
brokerServicePurgeInactiveFrequencyInSeconds ledgerStorageClass nettyMaxFrameSizeBytes
dbStorage_writeCacheMaxSizeMb dbStorage_readAheadCacheMaxSizeMb dbStorage_readAheadCacheBatchSize
flushInterval dbStorage_rocksDB_blockCacheSize dbStorage_rocksDB_writeBufferSizeMB
dbStorage_rocksDB_sstSizeInMB dbStorage_rocksDB_blockSize dbStorage_rocksDB_bloomFilterBitsPerKey
dbStorage_rocksDB_numLevels dbStorage_rocksDB_numFilesInLevel0 dbStorage_rocksDB_maxSizeInLevel1MB
journalMaxGroupWaitMSec journalSyncData diskUsageThreshold diskUsageWarnThreshold allowLoopback gcWaitTime
allowAutoTopicCreation allowAutoTopicCreationType allowAutoSubscriptionCreation defaultNumPartitions
transactionCoordinatorEnabled transactionMetadataStoreProviderClassName
transactionBufferSnapshotMaxTransactionCount transactionBufferSnapshotMinTimeInMillis
transactionBufferSegmentedSnapshotEnabled transactionBufferSnapshotSegmentSize
transactionBufferClientOperationTimeoutInMills transactionLogBatchedWriteEnabled
transactionLogBatchedWriteMaxRecords transactionLogBatchedWriteMaxSize
transactionLogBatchedWriteMaxDelayInMillis transactionPendingAckBatchedWriteEnabled
transactionPendingAckBatchedWriteMaxRecords transactionPendingAckBatchedWriteMaxSize
transactionPendingAckBatchedWriteMaxDelayInMillis enablePackagesManagement
packagesManagementStorageProvider packagesReplicas packagesManagementLedgerRootPath
functionsWorkerEnablePackageManagement zooKeeperSessionTimeoutMillis zooKeeperOperationTimeoutSeconds
zooKeeperCacheExpirySeconds zookeeperServers configurationStoreServers
managedLedgerMaxUnackedRangesToPersistInZooKeeper delayedDeliveryEnabled
delayedDeliveryTrackerFactoryClassName delayedDeliveryTickTimeMillis isDelayedDeliveryDeliverAtTimeStrict
delayedDeliveryMinIndexCountPerBucket delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds
delayedDeliveryMaxIndexesPerBucketSnapshotSegment delayedDeliveryMaxNumBuckets
""".split()  # noqa: SIM905


def conf(text: str) -> config_file.ConfigFile:
    return config_file.parse("broker.conf", text.encode())


def problems(**arguments: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(environment={}, **arguments)  # type: ignore[arg-type]
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a=b", "a", "b"),
        ("  a = b  ", "a", "b"),
        ("a: b", "a", "b"),
        ("a b c", "a", "b c"),
        ("a\t=\tb", "a", "b"),
        ("a", "a", ""),
        ("a=", "a", ""),
        ("a==b", "a", "=b"),
        ("a=b#c", "a", "b#c"),
        ("a=b\\\n   c", "a", "bc"),
        ("a=b\\\\\n", "a", "b\\"),
        ("a\\ b=c", "a b", "c"),
        ("a\\=b=c", "a=b", "c"),
        ("a=\\u00e9\\tx", "a", "é\tx"),
        ("a=b\r\n", "a", "b"),
    ],
)
def test_properties_syntax(text: str, key: str, value: str) -> None:
    assert [(p.key, p.value) for p in conf(text).properties] == [(key, value)]


def test_comments_and_blank_lines_are_no_properties_and_lines_are_counted() -> None:
    found = conf("# one\n! two\n\n  # three\na=1\nb=2\\\n3\nc=4").properties
    assert found == [
        Property("a", "1", "broker.conf:5"),
        Property("b", "23", "broker.conf:6"),
        Property("c", "4", "broker.conf:8"),
    ]


@pytest.mark.parametrize("data", [b"a=1\nb=\xff", b"a=1\nb=\\u12", b"a=1\n=2"])
def test_what_is_no_properties_file_names_its_line(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^broker\.conf:2: "):
        config_file.parse("broker.conf", data)


def test_defaults_are_pulsars_names_and_need_no_source() -> None:
    loaded = load(environment={"PATH": "/bin", "HOME": "/", "lowercase": "1", "camelCase": "2"})
    assert loaded.config == Config()
    assert loaded.notices == []
    assert {"brokerServicePort", "managedLedgerCacheSizeMB", "journalMaxSizeMB"} <= set(
        config_values.settings()
    )


def test_flag_beats_environment_beats_file_beats_default() -> None:
    file = conf("brokerServicePort=1\nwebServicePort=2\nkeepAliveIntervalSeconds=3")
    environment = {"webServicePort": "20", "PULSAR_PREFIX_keepAliveIntervalSeconds": "30"}
    flags = [Property("keepAliveIntervalSeconds", "300", "--set")]
    loaded = load(file=file, environment=environment, flags=flags).config
    assert loaded.broker_service_port == 1
    assert loaded.web_service_port == 20
    assert loaded.keep_alive_interval_seconds == 300
    assert loaded.default_num_partitions == 1


def test_prefix_beats_the_plain_name_in_the_environment() -> None:
    environment = {"PULSAR_PREFIX_clusterName": "prefixed", "clusterName": "plain"}
    assert load(environment=environment).config.cluster_name == "prefixed"


def test_every_type_of_value() -> None:
    given = conf(
        "delayedDeliveryEnabled=FALSE\nallowAutoTopicCreationType=partitioned\n"
        "subscriptionTypesEnabled=Shared, key_shared\nbindAddress=0.0.0.0\n"
        "delayedDeliveryFixedDelayDetectionLookahead=5000000000"
    )
    loaded = load(file=given, environment={}).config
    assert loaded.delayed_delivery_enabled is False
    assert loaded.allow_auto_topic_creation_type == "partitioned"
    assert loaded.subscription_types_enabled == {"Shared", "Key_Shared"}
    assert loaded.bind_address == "0.0.0.0"
    assert loaded.delayed_delivery_fixed_delay_detection_lookahead == 5_000_000_000


def test_an_empty_value_is_no_value() -> None:
    loaded = load(file=conf("brokerServicePort=\nclusterName="), environment={"clusterName": ""})
    assert loaded.config == Config()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("brokerServicePort=65536", "a whole number from 0 to 65535"),
        ("brokerServicePort=-1", "a whole number from 0 to 65535"),
        ("brokerServicePort=6650x", "a whole number from 0 to 65535"),
        ("brokerServicePort=٦٦٥٠", "a whole number from 0 to 65535"),
        ("maxMessageSize=0", "a whole number from 1 to 5242880"),
        ("delayedDeliveryTickTimeMillis=" + "9" * 5000, "a whole number from 1 to"),
        ("delayedDeliveryEnabled=yes", "true or false"),
        ("allowAutoTopicCreationType=both", "one of non-partitioned, partitioned"),
        ("subscriptionTypesEnabled=Shared,Sharde", "one of Exclusive, Shared, Failover, Key_Shared"),
        ("clusterName=two words", "a text without spaces"),
    ],
)
def test_a_value_out_of_bounds_names_key_place_and_bounds(line: str, expected: str) -> None:
    [problem] = problems(file=conf("# a comment\n" + line))
    key = line.split("=")[0]
    assert problem.startswith(f"broker.conf:2: {key} = ")
    assert f"expected {expected}" in problem


def test_an_unknown_key_in_a_file_or_a_flag_is_an_error_with_a_suggestion() -> None:
    flags = [Property("delayedDeliveryTickTimeMilis", "5", "--set delayedDeliveryTickTimeMilis=5")]
    assert problems(file=conf("brokerservicePort=1\nzzz=1"), flags=flags) == [
        "broker.conf:1: unknown key 'brokerservicePort'. Did you mean brokerServicePort?",
        "broker.conf:2: unknown key 'zzz'.",
        "--set delayedDeliveryTickTimeMilis=5: unknown key 'delayedDeliveryTickTimeMilis'."
        " Did you mean delayedDeliveryTickTimeMillis?",
    ]


def test_an_unknown_prefixed_name_in_the_environment_is_only_reported() -> None:
    [notice] = load(environment={"PULSAR_PREFIX_clustrName": "x"}).notices
    assert "unknown key 'clustrName'. Did you mean clusterName?" in notice
    assert "ignored" in notice


def test_keys_that_pulsar_knows_and_that_are_not_served_are_reported_once() -> None:
    file = conf("zookeeperServers=\ntlsEnabled=true\njournalSyncData=false\ntlsEnabled=false")
    loaded = load(file=file, environment={"loadBalancerEnabled": "false"})
    assert loaded.config == Config()
    [notice] = loaded.notices
    assert notice.endswith(
        "without effect: zookeeperServers, tlsEnabled, journalSyncData, loadBalancerEnabled"
    )


@pytest.mark.parametrize(
    "key", ["authenticationEnabled", "authorizationEnabled", "tlsEnabled", "tlsEnabledWithKeyStore"]
)
def test_protection_that_would_not_be_there_is_an_error(key: str) -> None:
    [problem] = problems(file=conf(f"# ours\n{key}=True"))
    assert problem.startswith(f"broker.conf:2: {key} = 'True' asks for protection")
    assert f"remove {key} or set it to false" in problem
    assert "It listens on loopback (bindAddress 127.0.0.1)" in problem
    with pytest.raises(ConfigError, match="In a container it listens on all addresses"):
        load(file=conf(f"{key}=true"), environment={"GEMINGA_CONTAINER": "1"})
    with pytest.raises(ConfigError, match="environment variable"):
        load(environment={f"PULSAR_PREFIX_{key}": "true"})
    # What wins decides, as for every other key.
    off = [Property(key, "false", "--set")]
    assert len(load(file=conf(f"{key}=true"), environment={}, flags=off).notices) == 1


def test_a_port_for_tls_is_an_error_too() -> None:
    [problem] = problems(file=conf("brokerServicePortTls=6651\nwebServicePortTls="))
    assert "brokerServicePortTls = '6651' asks for TLS" in problem


def test_what_would_decide_about_stored_messages_is_said_in_a_line_of_its_own() -> None:
    file = conf(
        "defaultRetentionTimeInMinutes=60\nttlDurationDefaultInSeconds=0\nbrokerDeduplicationEnabled=TRUE\n"
        "backlogQuotaDefaultLimitGB=20\nbatchReadEnabled=true\nsubscriptionExpirationTimeMinutes=0"
    )
    *own, rest = load(file=file, environment={}).notices
    assert [line.split(" = ")[0] for line in own] == ["broker.conf:4: backlogQuotaDefaultLimitGB"]
    assert all("has no effect" in line for line in own)
    assert rest.endswith("without effect: batchReadEnabled")


def test_a_suggestion_is_given_only_for_what_is_near() -> None:
    assert problems(file=conf("topicSecret=1")) == ["broker.conf:1: unknown key 'topicSecret'."]


def test_a_line_that_is_no_assignment() -> None:
    assert problems(file=conf("brokerServicePort 6650\nlisten on all")) == [
        "broker.conf:2: expected key=value, not 'listen on all'."
    ]


def test_the_stock_standalone_file_starts_a_broker() -> None:
    text = "\n".join(f"{key}=" for key in STOCK_STANDALONE_KEYS)
    loaded = load(file=conf(text), environment={})
    assert loaded.config == Config()
    assert len(loaded.notices) == 1


def test_families_of_keys_that_are_handed_on() -> None:
    file = conf("bookkeeper_tlsHostnameVerificationEnabled=true\nbrokerClient_numIoThreads=2\ndlog.x=1")
    assert len(load(file=file, environment={}).notices) == 1


def test_settings_that_exclude_each_other() -> None:
    assert len(problems(file=conf("brokerServicePort=7000\nwebServicePort=7000"))) == 1
    assert len(problems(file=conf("managedLedgerMinLedgerRolloverTimeMinutes=241"))) == 1
    assert len(problems(file=conf("subscriptionTypesEnabled=,"))) == 1
    assert len(problems(file=conf("diskUsageThreshold=0.8\ndiskUsageLwmThreshold=0.81"))) == 1
    assert len(problems(file=conf("minorCompactionThreshold=0.5"))) == 1
    for allowed in (
        "diskUsageThreshold=0.8",
        "diskUsageThreshold=0.8\ndiskUsageLwmThreshold=0.8",
        "minorCompactionThreshold=0.5\nmajorCompactionInterval=0",
    ):
        assert load(file=conf(allowed), environment={}).notices == []
    assert load(file=conf("brokerServicePort=0\nwebServicePort=0"), environment={}).notices == []


def test_buckets_are_set_by_pulsars_names() -> None:
    key = "delayedDeliveryTrackerFactoryClassName"
    loaded = load(
        file=conf(
            f"{key}={IN_MEMORY_TRACKER}\ndelayedDeliveryMinIndexCountPerBucket=7\n"
            "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds=60\n"
            "delayedDeliveryMaxIndexesPerBucketSnapshotSegment=-1\ndelayedDeliveryMaxNumBuckets=50\n"
            "delayedDeliverySharedIndexEnabled=true"
        ),
        environment={},
    )
    assert loaded.notices == []
    assert Config().delayed_delivery_tracker_factory_class_name == BUCKET_TRACKER
    assert loaded.config.delayed_delivery_tracker_factory_class_name == IN_MEMORY_TRACKER
    assert loaded.config.delayed_delivery_min_index_count_per_bucket == 7
    assert loaded.config.delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds == 60
    assert loaded.config.delayed_delivery_max_indexes_per_bucket_snapshot_segment == -1
    assert loaded.config.delayed_delivery_max_num_buckets == 50
    assert loaded.config.delayed_delivery_shared_index_enabled is True


def test_every_bounded_setting_has_a_default_within_its_bounds() -> None:
    for setting in config_values.settings().values():
        default = getattr(Config(), setting.attribute)
        if setting.type in (int, float):
            assert setting.low is not None
            assert setting.high is not None
            unset = setting.key in (*SETTINGS.values(), "diskUsageLwmThreshold") and default == -1
            assert unset or setting.low <= default <= setting.high, setting.key


@pytest.mark.parametrize("value", ["1.01", "-0.1", "x", "0.5.5", "1e-1", "nan", "inf", "\u0661"])
def test_a_share_is_a_number_from_0_to_1(value: str) -> None:
    [problem] = problems(file=conf(f"diskUsageThreshold={value}"))
    assert "diskUsageThreshold" in problem
    assert "expected a number from 0 to 1" in problem


def test_loading_without_foreign_keys_imports_no_list_of_them() -> None:
    program = (
        "import sys; from geminga.config.loading import load; load(environment={'PATH': ''});"
        "print([m for m in ('geminga.config.keys', 'difflib') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_the_memory_is_divided_by_bookkeepers_shares_and_adds_up() -> None:
    for budget_mb in (160, 192, 1000, 65_536):
        parts = memory_parts(Config(memory_mb=budget_mb))
        budget = budget_mb * MIB
        assert sum(parts) == budget
        assert (parts.write_cache, parts.read_cache) == (budget // 4, budget // 4)
        assert parts.block_cache == budget // 10
        assert parts.tail_cache >= 4 * MIB
        brokers = budget - PROCESS_BYTES - sum(parts[:4])
        assert parts.publish == brokers // 2
        assert parts.tail_cache in {4 * MIB, brokers // 5}
    assert Config().memory_mb == 192


def test_parts_beyond_a_budget_that_was_named_are_refused() -> None:
    large = Property("dbStorage_writeCacheMaxSizeMb", "500", "broker.conf:1")
    budget = Property("memoryMb", "256", "--memory 256M")
    (problem,) = problems(flags=[large, budget])
    assert "budget of 256 MB" in problem
    assert "dbStorage_writeCacheMaxSizeMb 500" in problem
    # Without a named budget the file of a Pulsar is taken as it is, and the user is told.
    loaded = load(environment={}, flags=[large])
    assert memory_parts(loaded.config).write_cache == 500 * MIB
    assert "add up to" in loaded.notices[0]
    assert not load(environment={}, flags=[large, Property("memoryMb", "1024", "flag")]).notices


def test_the_brokers_parts_give_way_first() -> None:
    usual = memory_parts(Config())
    parts = memory_parts(Config(db_storage_write_cache_max_size_mb=55))
    assert sum(parts) == 192 * MIB
    assert parts.publish < usual.publish
    assert 4 * MIB <= parts.tail_cache < usual.tail_cache
    assert parts.process == PROCESS_BYTES
    assert 0 < parts.outboxes < usual.outboxes
    assert 0 < parts.reads < usual.reads
    assert 0 < parts.client_metadata < usual.client_metadata
    assert sum(memory_parts(Config(db_storage_write_cache_max_size_mb=62))) == 192 * MIB


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memoryMb", "159"),
        ("memoryMb", "-1"),
        ("dbStorage_writeCacheMaxSizeMb", "7"),
        ("dbStorage_rocksDB_blockCacheSize", "4096"),
        ("journalMaxMemorySizeMb", "0"),
        ("managedLedgerCacheSizeMB", "-1"),
    ],
)
def test_memory_bounds(key: str, value: str) -> None:
    (problem,) = problems(flags=[Property(key, value, "broker.conf:7")])
    assert problem.startswith(
        f"broker.conf:7: {key} = '{value}' is not allowed: expected a whole number from"
    )


@pytest.mark.parametrize("name", ["http://x", "a:80", "*", "*.evil.com", "a b", "-a", "a..b"])
def test_what_is_no_host_name_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=r"gemingaWebServiceHostNames: .* is no host name"):
        load(environment={}, flags=[Property("gemingaWebServiceHostNames", f"right.example,{name}", "--set")])


def test_host_names_are_taken() -> None:
    names = "a,b-c.example.,x_y"
    loaded = load(environment={}, flags=[Property("gemingaWebServiceHostNames", names, "--set")])
    assert loaded.config.geminga_web_service_host_names == tuple(names.split(","))
