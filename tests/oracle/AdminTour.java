import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.HttpURLConnection;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.pulsar.client.admin.GetStatsOptions;
import org.apache.pulsar.client.admin.ListNamespaceTopicsOptions;
import org.apache.pulsar.client.admin.ListTopicsOptions;
import org.apache.pulsar.client.admin.Mode;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.GrantTopicPermissionOptions;
import org.apache.pulsar.client.admin.RevokeTopicPermissionOptions;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.common.naming.TopicDomain;
import org.apache.pulsar.common.naming.TopicVersion;
import org.apache.pulsar.common.policies.data.*;
import org.apache.pulsar.common.protocol.schema.PostSchemaPayload;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.util.ObjectMapperFactory;

/**
 * Calls the published Java admin client, a few hundred times, and prints one JSON line per call: its name, and its
 * result or the exception. The first answers of these calls are in tests/e2e/tours (`recorder.py` runs this there).
 *
 * <pre>java -cp 'DIRECTORY_OF_JARS/*' tests/oracle/AdminTour.java WEB_URL TENANT TOPIC LEDGER BROKER</pre>
 *
 * TENANT does not exist yet; TOPIC holds entries since ledger LEDGER and has the subscription `all`. Before each
 * call its name is sent to WEB_URL/-/call/NAME, so that a proxy there knows what the next requests belong to.
 */
public class AdminTour {
    static final com.fasterxml.jackson.databind.ObjectMapper JSON = ObjectMapperFactory.create();
    static final Map<String, Integer> TIMES = new HashMap<>();
    static PulsarAdmin admin;
    static String webUrl;

    public static void main(String[] arguments) throws Exception {
        webUrl = arguments[0];
        try (PulsarAdmin opened = PulsarAdmin.builder().serviceHttpUrl(webUrl).build()) {
            admin = opened;
            String tenant = arguments[1];
            String space = tenant + "/space";
            brokers(arguments[4]);
            clusters(tenant);
            tenants(tenant);
            namespaces(tenant, space);
            namespacePolicies(space);
            topics(space, arguments[2], Long.parseLong(arguments[3]));
            String topic = "persistent://" + space + "/one";
            topicPolicies(topic);
            schemas("persistent://" + space + "/typed");
            rest(space);
            ends(tenant, space);
        }
        System.exit(0);
    }

    static void brokers(String broker) throws Exception {
        call("brokers.getActiveBrokers");
        call("brokers.getActiveBrokers", "standalone");
        call("brokers.getActiveBrokers", "absent");
        call("brokers.getLeaderBroker");
        call("brokers.getOwnedNamespaces", "standalone", broker);
        call("brokers.getDynamicConfigurationNames");
        call("brokers.getAllDynamicConfigurations");
        call("brokers.updateDynamicConfiguration", "maxConsumersPerTopic", "50");
        call("brokers.getAllDynamicConfigurations");
        call("brokers.deleteDynamicConfiguration", "maxConsumersPerTopic");
        call("brokers.updateDynamicConfiguration", "noSuchSetting", "1");
        call("brokers.deleteDynamicConfiguration", "noSuchSetting");
        call("brokers.getRuntimeConfigurations");
        call("brokers.getInternalConfigurationData");
        call("brokers.backlogQuotaCheck");
        call("brokers.healthcheck");
        call("brokers.healthcheck", TopicVersion.V1);
        call("brokers.healthcheck", TopicVersion.V2);
        call("brokers.getVersion");
        call("brokerStats.getMetrics");
        call("brokerStats.getMBeans");
        call("brokerStats.getTopics");
        call("brokerStats.getLoadReport");
        call("brokerStats.getAllocatorStats", "default");
        call("brokerStats.getPendingBookieOpsStats");
        call("bookies.getBookies");
        call("bookies.getBookiesRackInfo");
        BookieInfo rack = BookieInfo.builder().rack("/east").hostname("shelf").build();
        call("bookies.updateBookieRackInfo", "10.0.0.1:3181", "default", rack);
        call("bookies.getBookieRackInfo", "10.0.0.1:3181");
        call("bookies.deleteBookieRackInfo", "10.0.0.1:3181");
        call("bookies.getBookieRackInfo", "10.0.0.1:3181");
    }

    static void clusters(String tenant) throws Exception {
        String far = tenant + "-far";
        call("clusters.getClusters");
        call("clusters.getCluster", "standalone");
        call("clusters.getCluster", "absent");
        call("clusters.createCluster", far, ClusterData.builder().serviceUrl("http://far:8080")
                .brokerServiceUrl("pulsar://far:6650").build());
        call("clusters.createCluster", far, ClusterData.builder().serviceUrl("http://far:8080").build());
        call("clusters.createCluster", "bad/name", ClusterData.builder().serviceUrl("http://far:8080").build());
        call("clusters.getCluster", far);
        call("clusters.updateCluster", far, ClusterData.builder().serviceUrl("http://far:8081").build());
        call("clusters.updateCluster", "absent", ClusterData.builder().serviceUrl("http://far:8081").build());
        call("clusters.getCluster", far);
        call("clusters.updatePeerClusterNames", far, new LinkedHashSet<>(List.of("standalone")));
        call("clusters.getPeerClusterNames", far);
        call("clusters.updatePeerClusterNames", far, new LinkedHashSet<>(List.of("absent")));
        call("clusters.updateClusterMigration", far, true,
                new ClusterPolicies.ClusterUrl("http://b:1", null, "pulsar://b:2", null));
        call("clusters.getClusterMigration", far);
        NamespaceIsolationData isolation = NamespaceIsolationData.builder().namespaces(List.of("other/.*"))
                .primary(List.of("broker-a.*")).secondary(List.of("broker-b.*"))
                .autoFailoverPolicy(AutoFailoverPolicyData.builder().policyType(AutoFailoverPolicyType.min_available)
                        .parameters(new TreeMap<>(Map.of("min_limit", "1", "usage_threshold", "80"))).build())
                .build();
        call("clusters.getNamespaceIsolationPolicies", "standalone");
        call("clusters.createNamespaceIsolationPolicy", "standalone", tenant, isolation);
        call("clusters.getNamespaceIsolationPolicies", "standalone");
        call("clusters.getNamespaceIsolationPolicy", "standalone", tenant);
        call("clusters.getNamespaceIsolationPolicy", "standalone", "absent");
        call("clusters.getBrokersWithNamespaceIsolationPolicy", "standalone");
        call("clusters.updateNamespaceIsolationPolicy", "standalone", tenant, isolation);
        call("clusters.deleteNamespaceIsolationPolicy", "standalone", tenant);
        call("clusters.getNamespaceIsolationPolicies", "standalone");
        FailureDomain domain = FailureDomain.builder().brokers(Set.of("b1")).build();
        call("clusters.getFailureDomains", far);
        call("clusters.createFailureDomain", far, "rack", domain);
        call("clusters.getFailureDomain", far, "rack");
        call("clusters.getFailureDomain", far, "absent");
        call("clusters.updateFailureDomain", far, "rack", domain);
        call("clusters.deleteFailureDomain", far, "rack");
        call("clusters.deleteCluster", far);
        call("clusters.deleteCluster", far);
        call("clusters.getCluster", far);
    }

    static void tenants(String tenant) throws Exception {
        TenantInfo info = TenantInfo.builder().adminRoles(Set.of("boss")).allowedClusters(Set.of("standalone")).build();
        TenantInfo far = TenantInfo.builder().allowedClusters(Set.of("absent")).build();
        call("tenants.createTenant", tenant, info);
        call("tenants.createTenant", tenant, info);
        call("tenants.createTenant", tenant + "-bad", far);
        call("tenants.createTenant", "a b", info);
        call("tenants.getTenants");
        call("tenants.getTenantInfo", tenant);
        call("tenants.getTenantInfo", "absent");
        call("tenants.updateTenant", tenant, TenantInfo.builder().adminRoles(Set.of("a", "b"))
                .allowedClusters(Set.of("standalone")).build());
        call("tenants.getTenantInfo", tenant);
        call("tenants.updateTenant", "absent", info);
        call("tenants.deleteTenant", "absent");
    }

    static void namespaces(String tenant, String space) throws Exception {
        call("namespaces.createNamespace", space);
        call("namespaces.createNamespace", space);
        call("namespaces.createNamespace", tenant + "/four", 4);
        call("namespaces.createNamespace", tenant + "/clustered", Set.of("standalone"));
        call("namespaces.createNamespace", tenant + "/halves", BundlesData.builder()
                .boundaries(List.of("0x00000000", "0x80000000", "0xffffffff")).numBundles(2).build());
        call("namespaces.createNamespace", "absent/one");
        call("namespaces.createNamespace", tenant + "/no", 0);
        call("namespaces.getNamespaces", tenant);
        call("namespaces.getNamespaces", "absent");
        call("namespaces.getTopics", space);
        call("namespaces.getTopics", space, ListNamespaceTopicsOptions.builder().mode(Mode.PERSISTENT).build());
        call("namespaces.getBundles", tenant + "/four");
        call("namespaces.getPolicies", space);
        call("namespaces.getPolicies", tenant + "/absent");
        call("namespaces.grantPermissionOnNamespace", space, "role", Set.of(AuthAction.produce));
        call("namespaces.getPermissions", space);
        call("namespaces.revokePermissionsOnNamespace", space, "role");
        call("namespaces.getPermissions", space);
        call("namespaces.grantPermissionOnSubscription", space, "sub", Set.of("role"));
        call("namespaces.getPermissionOnSubscription", space);
        call("namespaces.revokePermissionOnSubscription", space, "sub", "role");
        call("namespaces.getPermissionOnSubscription", space);
        call("namespaces.grantPermissionOnSubscription", space, "sub", Set.of("one", "two"));
        call("namespaces.revokePermissionOnSubscription", space, "sub", "one");
        call("namespaces.getPermissionOnSubscription", space);
        call("namespaces.revokePermissionOnSubscription", space, "sub", "two");
        call("namespaces.splitNamespaceBundle", tenant + "/halves", "0x00000000_0x80000000", true, null);
        call("namespaces.unloadNamespaceBundle", tenant + "/four", "0x00000000_0x40000000");
        call("namespaces.unload", tenant + "/four");
        call("namespaces.clearNamespaceBacklog", tenant + "/four");
        call("namespaces.clearNamespaceBacklogForSubscription", tenant + "/four", "sub");
        call("namespaces.clearNamespaceBundleBacklog", tenant + "/four", "0x00000000_0x40000000");
        call("namespaces.unsubscribeNamespace", tenant + "/four", "sub");
        call("namespaces.getTopicHashPositions", tenant + "/four", "0x00000000_0x40000000", List.of());
        call("namespaces.deleteNamespace", tenant + "/clustered");
        call("namespaces.deleteNamespace", tenant + "/clustered");
        call("namespaces.deleteNamespaceBundle", tenant + "/four", "0x00000000_0x40000000");
    }

    static void namespacePolicies(String space) throws Exception {
        policy("namespaces", space, "NamespaceMessageTTL", 60);
        policy("namespaces", space, "SubscriptionExpirationTime", 5);
        policy("namespaces", space, "DeduplicationStatus", true);
        policy("namespaces", space, "AutoTopicCreation", AutoTopicCreationOverride.builder()
                .allowAutoTopicCreation(true).topicType("partitioned").defaultNumPartitions(3).build());
        policy("namespaces", space, "AutoSubscriptionCreation",
                AutoSubscriptionCreationOverride.builder().allowAutoSubscriptionCreation(false).build());
        policy("namespaces", space, "SubscriptionTypesEnabled", Set.of(SubscriptionType.Shared));
        policy("namespaces", space, "Persistence", new PersistencePolicies(1, 1, 1, 2.5));
        policy("namespaces", space, "Retention", new RetentionPolicies(60, 100));
        policy("namespaces", space, "PublishRate", new PublishRate(1000, 100_000));
        policy("namespaces", space, "DispatchRate", rate());
        policy("namespaces", space, "SubscribeRate", new SubscribeRate(10, 30));
        policy("namespaces", space, "SubscriptionDispatchRate", rate());
        policy("namespaces", space, "ReplicatorDispatchRate", rate());
        call("namespaces.setDelayedDeliveryMessages", space, delays());
        call("namespaces.getDelayedDelivery", space);
        call("namespaces.removeDelayedDeliveryMessages", space);
        policy("namespaces", space, "InactiveTopicPolicies", inactive());
        policy("namespaces", space, "DeduplicationSnapshotInterval", 100);
        for (String name : List.of("MaxSubscriptionsPerTopic", "MaxProducersPerTopic", "MaxConsumersPerTopic",
                "MaxConsumersPerSubscription", "MaxUnackedMessagesPerConsumer",
                "MaxUnackedMessagesPerSubscription", "MaxTopicsPerNamespace")) {
            policy("namespaces", space, name, 7);
            call("namespaces.set" + name, space, -1);
        }
        policy("namespaces", space, "CompactionThreshold", 1000L);
        quotas("namespaces", space);
        call("namespaces.setNamespaceReplicationClusters", space, Set.of("standalone"));
        call("namespaces.getNamespaceReplicationClusters", space);
        call("namespaces.setNamespaceReplicationClusters", space, Set.of("absent"));
        call("namespaces.setNamespaceAllowedClusters", space, Set.of("standalone"));
        call("namespaces.getNamespaceAllowedClusters", space);
        String halves = space.split("/")[0] + "/halves";
        call("namespaces.setNamespaceAntiAffinityGroup", halves, "apart");
        call("namespaces.getNamespaceAntiAffinityGroup", halves);
        call("namespaces.getAntiAffinityNamespaces", space.split("/")[0], "standalone", "apart");
        call("namespaces.deleteNamespaceAntiAffinityGroup", halves);
        call("namespaces.setEncryptionRequiredStatus", space, true);
        call("namespaces.getEncryptionRequiredStatus", space);
        call("namespaces.setEncryptionRequiredStatus", space, false);
        call("namespaces.setSubscriptionAuthMode", space, SubscriptionAuthMode.Prefix);
        call("namespaces.getSubscriptionAuthMode", space);
        call("namespaces.getOffloadThreshold", space);
        call("namespaces.setOffloadThreshold", space, 1000L);
        call("namespaces.getOffloadThreshold", space);
        call("namespaces.getOffloadThresholdInSeconds", space);
        call("namespaces.setOffloadThresholdInSeconds", space, 100L);
        call("namespaces.getOffloadDeleteLagMs", space);
        call("namespaces.setOffloadDeleteLag", space, 3L, TimeUnit.SECONDS);
        call("namespaces.getOffloadDeleteLagMs", space);
        call("namespaces.clearOffloadDeleteLag", space);
        policy("namespaces", space, "OffloadPolicies", offload());
        call("namespaces.getSchemaAutoUpdateCompatibilityStrategy", space);
        call("namespaces.setSchemaCompatibilityStrategy", space, SchemaCompatibilityStrategy.BACKWARD);
        call("namespaces.getSchemaCompatibilityStrategy", space);
        call("namespaces.setSchemaValidationEnforced", space, true);
        call("namespaces.getSchemaValidationEnforced", space, true);
        call("namespaces.setSchemaValidationEnforced", space, false);
        call("namespaces.setIsAllowAutoUpdateSchema", space, true);
        call("namespaces.getIsAllowAutoUpdateSchema", space);
        call("namespaces.setProperty", space, "colour", "green");
        call("namespaces.setProperties", space, Map.of("size", "9", "shape", "a b"));
        call("namespaces.getProperty", space, "colour");
        call("namespaces.getProperties", space);
        call("namespaces.removeProperty", space, "colour");
        call("namespaces.removeProperty", space, "absent");
        call("namespaces.clearProperties", space);
        call("namespaces.getNamespaceEntryFilters", space);
        call("namespaces.setNamespaceEntryFilters", space, new EntryFilters("absent"));
        call("namespaces.removeNamespaceEntryFilters", space);
        policy("namespaces", space, "DispatcherPauseOnAckStatePersistent");
        call("namespaces.setBookieAffinityGroup", halves, BookieAffinityGroupData.builder()
                .bookkeeperAffinityGroupPrimary("a").bookkeeperAffinityGroupSecondary("b").build());
        call("namespaces.getBookieAffinityGroup", halves);
        call("namespaces.deleteBookieAffinityGroup", halves);
        call("namespaces.updateMigrationState", space, false);
        call("namespaces.getReplicationConfigVersion", space);
        call("namespaces.getPolicies", space);
    }

    static void topics(String space, String entries, long ledger) throws Exception {
        String one = "persistent://" + space + "/one";
        String parted = "persistent://" + space + "/parted";
        call("topics.createNonPartitionedTopic", one);
        call("topics.createNonPartitionedTopic", one);
        call("topics.createNonPartitionedTopic", "persistent://absent/space/one");
        call("topics.createPartitionedTopic", parted, 2, Map.of("made", "by tour"));
        call("topics.createPartitionedTopic", parted, 2);
        call("topics.createPartitionedTopic", "persistent://" + space + "/none", -3);
        call("topics.getPartitionedTopicMetadata", parted);
        call("topics.getPartitionedTopicMetadata", one);
        call("topics.getPartitionedTopicMetadata", one + "-absent");
        call("topics.updatePartitionedTopic", parted, 3);
        call("topics.updatePartitionedTopic", parted, 1);
        call("topics.createMissedPartitions", parted);
        call("topics.getList", space);
        call("topics.getList", space, TopicDomain.persistent);
        call("topics.getList", space, TopicDomain.persistent, ListTopicsOptions.EMPTY);
        call("topics.getList", "absent/space", TopicDomain.persistent);
        call("topics.getPartitionedTopicList", space);
        call("topics.getPermissions", one);
        call("topics.grantPermission", one, "role", Set.of(AuthAction.produce, AuthAction.consume));
        call("topics.getPermissions", one);
        call("topics.revokePermissions", one, "role");
        call("topics.revokePermissions", one, "role");
        call("namespaces.grantPermissionOnTopics", List.of(GrantTopicPermissionOptions.builder().topic(one)
                .role("r").actions(Set.of(AuthAction.consume)).build()));
        call("topics.getPermissions", one);
        call("namespaces.revokePermissionOnTopics",
                List.of(RevokeTopicPermissionOptions.builder().topic(one).role("r").build()));
        call("topics.updateProperties", one, Map.of("a", "1", "b", "2"));
        call("topics.getProperties", one);
        call("topics.removeProperties", one, "a");
        call("topics.getProperties", one);
        call("topics.getProperties", parted);
        call("topics.createSubscription", one, "latest", MessageId.latest);
        call("topics.createSubscription", one, "latest", MessageId.latest);
        call("topics.createSubscription", one, "early", MessageId.earliest, true, Map.of("who", "tour"));
        call("topics.createSubscription", one + "-absent", "sub", MessageId.latest);
        call("topics.createSubscription", parted, "sub", MessageId.latest);
        call("topics.getSubscriptions", one);
        call("topics.getSubscriptions", parted);
        call("topics.getSubscriptionProperties", one, "early");
        call("topics.updateSubscriptionProperties", one, "early", Map.of("x", "y"));
        call("topics.getSubscriptionProperties", one, "early");
        call("topics.getReplicatedSubscriptionStatus", one, "early");
        call("topics.setReplicatedSubscriptionStatus", one, "early", true);
        call("topics.getReplicatedSubscriptionStatus", one, "early");
        call("topics.deleteSubscription", one, "latest");
        call("topics.deleteSubscription", one, "latest");
        call("topics.deleteSubscription", one, "early", true);
        call("topics.getStats", one);
        call("topics.getStats", one + "-absent");
        call("topics.getStats", entries, GetStatsOptions.builder().getPreciseBacklog(true).subscriptionBacklogSize(true)
                .getEarliestTimeInBacklog(true).build());
        call("topics.getInternalStats", entries, true);
        call("topics.getInternalStats", one);
        call("topics.getInternalInfo", entries);
        call("topics.getPartitionedStats", parted, true);
        call("topics.getPartitionedStats", one, true);
        call("topics.getPartitionedInternalStats", parted);
        call("topics.peekMessages", entries, "all", 3);
        call("topics.peekMessages", one, "absent", 1);
        for (long entry = 0; entry < 16; entry++) {
            call("topics.getMessagesById", entries, ledger, entry);
        }
        call("topics.getMessageById", entries, ledger, 0L);
        call("topics.getMessageById", entries, ledger, 1000L);
        call("topics.getMessageById", entries, 999999L, 0L);
        call("topics.examineMessage", entries, "earliest", 3L);
        call("topics.examineMessage", entries, "latest", 1L);
        call("topics.examineMessage", one, "latest", 1L);
        call("topics.examineMessage", entries, "middle", 1L);
        call("topics.getLastMessageId", entries);
        call("topics.getLastMessageId", one);
        call("topics.getMessageIdByTimestamp", entries, 1_700_000_005_000L);
        call("topics.getMessageIdByTimestamp", one, 1_700_000_005_000L);
        call("topics.analyzeSubscriptionBacklog", entries, "all", Optional.empty());
        call("topics.analyzeSubscriptionBacklog", entries, "absent", Optional.empty());
        call("topics.getBacklogSizeByMessageId", entries, new MessageIdImpl(ledger, 15, -1));
        call("topics.skipMessages", entries, "all", 2L);
        call("topics.getStats", entries);
        call("topics.resetCursor", entries, "all", 1_700_000_003_000L);
        call("topics.resetCursor", entries, "all", new MessageIdImpl(ledger, 5, -1));
        call("topics.resetCursor", entries, "all", MessageId.earliest);
        call("topics.resetCursor", entries, "absent", MessageId.earliest);
        call("topics.expireMessages", entries, "all", 1_000_000_000L);
        call("topics.expireMessages", entries, "all", new MessageIdImpl(ledger, 3, -1), false);
        call("topics.expireMessagesForAllSubscriptions", entries, 1_000_000_000L);
        call("topics.peekMessages", entries, "all", 1);
        call("topics.skipAllMessages", entries, "all");
        call("topics.skipAllMessages", entries, "absent");
        call("topics.peekMessages", entries, "all", 1);
        call("topics.compactionStatus", one);
        call("topics.triggerCompaction", one);
        call("topics.offloadStatus", one);
        call("topics.triggerOffload", one, MessageId.latest);
        call("topics.trimTopic", one);
        call("topics.truncate", one);
        call("topics.unload", one);
        call("topics.unload", parted);
        call("topics.getListInBundle", space, "0x00000000_0xffffffff");
        call("topics.setShadowTopics", one, List.of("persistent://" + space + "/absent"));
        call("topics.getShadowTopics", one);
        call("topics.removeShadowTopics", one);
        call("topics.terminateTopic", entries);
        call("topics.terminatePartitionedTopic", parted);
        call("topics.terminateTopic", parted);
        call("lookups.lookupTopic", one);
        call("lookups.lookupPartitionedTopic", parted);
        call("lookups.lookupPartitionedTopic", one + "-absent");
        call("lookups.getBundleRange", one);
        call("nonPersistentTopics.getList", space);
        call("topics.getList", space, TopicDomain.non_persistent);
        call("topics.peekMessages", entries, "made-by-peek", 1);
        call("topics.getSubscriptions", entries);
        call("topics.deletePartitionedTopic", one);
        call("topics.deletePartitionedTopic", parted);
        call("topics.deletePartitionedTopic", parted);
        call("topics.delete", entries);
        call("topics.delete", entries + "-absent");
        call("topics.delete", entries, true);
    }

    static void topicPolicies(String topic) throws Exception {
        String t = "topicPolicies";
        policy(t, topic, "MessageTTL", 60);
        policy(t, topic, "Retention", new RetentionPolicies(60, 100));
        policy(t, topic, "Persistence", new PersistencePolicies(1, 1, 1, 2.5));
        policy(t, topic, "DelayedDeliveryPolicy", delays());
        policy(t, topic, "InactiveTopicPolicies", inactive());
        policy(t, topic, "OffloadPolicies", offload());
        policy(t, topic, "DeduplicationStatus", true);
        policy(t, topic, "DispatchRate", rate());
        policy(t, topic, "SubscriptionDispatchRate", rate());
        policy(t, topic, "ReplicatorDispatchRate", rate());
        policy(t, topic, "PublishRate", new PublishRate(1000, 100_000));
        policy(t, topic, "SubscribeRate", new SubscribeRate(10, 30));
        policy(t, topic, "CompactionThreshold", 1000L);
        policy(t, topic, "SubscriptionTypesEnabled", Set.of(SubscriptionType.Shared));
        policy(t, topic, "MaxMessageSize", 1000);
        policy(t, topic, "DeduplicationSnapshotInterval", 100);
        for (String name : List.of("MaxUnackedMessagesOnConsumer", "MaxUnackedMessagesOnSubscription",
                "MaxConsumersPerSubscription", "MaxProducers", "MaxSubscriptionsPerTopic", "MaxConsumers")) {
            policy(t, topic, name, 7);
            call(t + ".set" + name, topic, -5);
        }
        call(t + ".setSchemaCompatibilityStrategy", topic, SchemaCompatibilityStrategy.FULL);
        call(t + ".getSchemaCompatibilityStrategy", topic, false);
        call(t + ".removeSchemaCompatibilityStrategy", topic);
        call(t + ".getSchemaCompatibilityStrategy", topic, true);
        call(t + ".setAutoSubscriptionCreation", topic,
                AutoSubscriptionCreationOverride.builder().allowAutoSubscriptionCreation(true).build());
        call(t + ".getAutoSubscriptionCreation", topic, false);
        call(t + ".removeAutoSubscriptionCreation", topic);
        call(t + ".getEntryFiltersPerTopic", topic, true);
        call(t + ".setEntryFiltersPerTopic", topic, new EntryFilters("absent"));
        call(t + ".setReplicationClusters", topic, List.of("standalone"));
        call(t + ".getReplicationClusters", topic, true);
        call(t + ".removeReplicationClusters", topic);
        call(t + ".setSubscriptionDispatchRate", topic, "sub", rate());
        call(t + ".getSubscriptionDispatchRate", topic, "sub");
        call(t + ".removeSubscriptionDispatchRate", topic, "sub");
        call("topics.setSchemaValidationEnforced", topic, true);
        call("topics.getSchemaValidationEnforced", topic, false);
        quotas(t, topic);
        call(t + ".setMessageTTL", topic + "-absent", 5);
        call(t + ".getMessageTTL", topic + "-absent");
        call(t + ".deleteTopicPolicies", topic);
        call(t + ".getMessageTTL", topic);
    }

    static void schemas(String topic) throws Exception {
        SchemaInfo text = Schema.STRING.getSchemaInfo();
        PostSchemaPayload first = avro("{\"name\":\"a\",\"type\":\"string\"}");
        PostSchemaPayload second = avro("{\"name\":\"a\",\"type\":\"string\"},"
                + "{\"name\":\"b\",\"type\":[\"null\",\"int\"],\"default\":null}");
        PostSchemaPayload broken = avro("{\"name\":\"a\",\"type\":\"int\"}");
        call("topics.createNonPartitionedTopic", topic);
        call("schemas.getSchemaInfo", topic);
        call("schemas.createSchema", topic, first);
        call("schemas.getSchemaInfo", topic);
        call("schemas.testCompatibility", topic, second);
        call("schemas.testCompatibility", topic, broken);
        call("schemas.createSchema", topic, broken);
        call("schemas.createSchema", topic, second);
        call("schemas.getSchemaInfoWithVersion", topic);
        call("schemas.getSchemaInfo", topic, 0L);
        call("schemas.getSchemaInfo", topic, 9L);
        call("schemas.getAllSchemas", topic);
        call("schemas.getVersionBySchema", topic, first);
        call("schemas.getVersionBySchema", topic, second);
        call("schemas.getSchemaMetadata", topic);
        call("schemas.createSchema", topic + "2", text);
        call("schemas.getVersionBySchema", topic + "2", text);
        call("schemas.createSchema", topic, new PostSchemaPayload("AVRO", "{", Map.of()));
        call("schemas.deleteSchema", topic);
        call("schemas.getSchemaInfo", topic);
        call("schemas.deleteSchema", topic, true);
    }

    static void rest(String space) throws Exception {
        ResourceGroup group = new ResourceGroup();
        group.setPublishRateInMsgs(100);
        group.setDispatchRateInBytes(1000L);
        call("resourcegroups.getResourceGroups");
        call("resourcegroups.createResourceGroup", "group", group);
        call("resourcegroups.getResourceGroup", "group");
        group.setPublishRateInMsgs(200);
        call("resourcegroups.updateResourceGroup", "group", group);
        call("resourcegroups.getResourceGroup", "group");
        call("resourcegroups.getResourceGroup", "absent");
        call("namespaces.setNamespaceResourceGroup", space, "group");
        call("namespaces.getNamespaceResourceGroup", space);
        call("namespaces.setNamespaceResourceGroup", space, "absent");
        call("namespaces.removeNamespaceResourceGroup", space);
        call("resourcegroups.deleteResourceGroup", "group");
        call("resourcegroups.deleteResourceGroup", "group");
        ResourceQuota quota = new ResourceQuota();
        quota.setMsgRateIn(10);
        call("resourceQuotas.getDefaultResourceQuota");
        call("resourceQuotas.getNamespaceBundleResourceQuota", space.split("/")[0] + "/four", "0x00000000_0x40000000");
    }

    static void ends(String tenant, String space) throws Exception {
        call("namespaces.deleteNamespace", space);
        call("tenants.deleteTenant", tenant);
        call("topics.delete", "persistent://" + space + "/one");
        call("topics.delete", "persistent://" + space + "/typed");
        call("topics.delete", "persistent://" + space + "/typed2", true);
        call("namespaces.deleteNamespace", space);
        call("namespaces.deleteNamespace", tenant + "/four");
        call("namespaces.deleteNamespace", tenant + "/halves");
        call("tenants.deleteTenant", tenant);
        call("tenants.getTenants");
    }

    /** Reads what is in force, sets, reads, removes, and reads again. */
    static void policy(String api, String name, String policy, Object... value) throws Exception {
        Object[] set = new Object[value.length + 1];
        set[0] = name;
        System.arraycopy(value, 0, set, 1, value.length);
        boolean applied = api.equals("topicPolicies") && hasMethod(api, "get" + policy, name, true);
        call(api + ".get" + policy, applied ? new Object[] {name, true} : new Object[] {name});
        call(api + ".set" + policy, set);
        call(api + ".get" + policy, name);
        call(api + ".remove" + policy, name);
        call(api + ".get" + policy, name);
    }

    static void quotas(String api, String name) throws Exception {
        BacklogQuota quota = BacklogQuota.builder().limitSize(10_000).limitTime(600)
                .retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception).build();
        call(api + ".getBacklogQuotaMap", name);
        call(api + ".setBacklogQuota", name, quota);
        call(api + ".setBacklogQuota", name, quota, BacklogQuota.BacklogQuotaType.message_age);
        call(api + ".getBacklogQuotaMap", name);
        call(api + ".removeBacklogQuota", name, BacklogQuota.BacklogQuotaType.message_age);
        call(api + ".removeBacklogQuota", name);
        call(api + ".getBacklogQuotaMap", name);
    }

    static DispatchRate rate() {
        return DispatchRate.builder().dispatchThrottlingRateInMsg(5000).dispatchThrottlingRateInByte(60_000)
                .ratePeriodInSecond(2).relativeToPublishRate(false).build();
    }

    static DelayedDeliveryPolicies delays() {
        return DelayedDeliveryPolicies.builder().active(true).tickTime(1500).maxDeliveryDelayInMillis(10_000).build();
    }

    static InactiveTopicPolicies inactive() {
        return new InactiveTopicPolicies(InactiveTopicDeleteMode.delete_when_no_subscriptions, 3600, true);
    }

    static OffloadPolicies offload() {
        return OffloadPolicies.builder().managedLedgerOffloadDriver("filesystem").fileSystemURI("hdfs://a:1")
                .managedLedgerOffloadThresholdInBytes(1000L).build();
    }

    static PostSchemaPayload avro(String fields) {
        return new PostSchemaPayload("AVRO",
                "{\"type\":\"record\",\"name\":\"Row\",\"fields\":[" + fields + "]}", Map.of("from", "tour"));
    }

    /** `api.method`, with these arguments: its line on standard output. */
    static void call(String name, Object... arguments) throws Exception {
        int time = TIMES.merge(name, 1, Integer::sum);
        String unique = time == 1 ? name : name + "-" + time;
        var marked = (HttpURLConnection) URI.create(webUrl + "/-/call/" + unique).toURL().openConnection();
        marked.getResponseCode();
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("call", unique);
        String[] parts = name.split("\\.");
        Object api = PulsarAdmin.class.getMethod(parts[0]).invoke(admin);
        try {
            line.put("result", shown(method(api, parts[1], arguments).invoke(api, arguments)));
        } catch (InvocationTargetException error) {
            Throwable cause = error.getCause();
            line.put("exception", cause.getClass().getSimpleName());
            if (cause instanceof PulsarAdminException refused) {
                line.put("status", refused.getStatusCode());
                line.put("reason", String.valueOf(refused.getHttpError()).split("\n")[0]);
            }
        }
        System.out.println("TOUR " + JSON.writeValueAsString(line));
    }

    static boolean hasMethod(String api, String name, Object... arguments) throws Exception {
        return find(PulsarAdmin.class.getMethod(api).invoke(admin), name, arguments).isPresent();
    }

    static Method method(Object api, String name, Object... arguments) {
        return find(api, name, arguments).orElseThrow(() -> new AssertionError(name + Arrays.toString(arguments)));
    }

    static Optional<Method> find(Object api, String name, Object... arguments) {
        return Arrays.stream(api.getClass().getMethods())
                .filter(one -> one.getName().equals(name) && takes(one.getParameterTypes(), arguments))
                .peek(one -> one.setAccessible(true)).findFirst();
    }

    static boolean takes(Class<?>[] types, Object[] arguments) {
        if (types.length != arguments.length) {
            return false;
        }
        for (int i = 0; i < types.length; i++) {
            Class<?> boxed = java.lang.invoke.MethodType.methodType(types[i]).wrap().returnType();
            if (arguments[i] != null && !boxed.isInstance(arguments[i])) {
                return false;
            }
        }
        return true;
    }

    /** A result as JSON shows it: what the client parsed. */
    static Object shown(Object result) {
        if (result instanceof java.util.concurrent.CompletableFuture<?> future) {
            return shown(future.join());
        } else if (result instanceof Message<?> message) {
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("id", message.getMessageId().toString());
            byte[] data = message.getData();
            fields.put("data", data == null ? null : Base64.getEncoder().encodeToString(data));
            fields.put("properties", new TreeMap<>(message.getProperties()));
            fields.put("key", message.getKey());
            fields.put("eventTime", message.getEventTime());
            fields.put("publishTime", message.getPublishTime());
            fields.put("producer", message.getProducerName());
            fields.put("sequence", message.getSequenceId());
            return fields;
        } else if (result instanceof MessageId id) {
            return id.toString();
        } else if (result instanceof Optional<?> maybe) {
            return shown(maybe.orElse(null));
        } else if (result instanceof Set<?> set) {
            return set.stream().map(AdminTour::shown).map(String::valueOf).sorted().collect(Collectors.toList());
        } else if (result instanceof Collection<?> items) {
            return items.stream().map(AdminTour::shown).collect(Collectors.toList());
        } else if (result instanceof SchemaInfo schema) {
            return Map.of("name", schema.getName(), "type", schema.getType().toString(), "properties",
                    new TreeMap<>(schema.getProperties()), "schema",
                    new String(schema.getSchema(), StandardCharsets.UTF_8));
        } else if (result instanceof Map<?, ?> map) {
            Map<String, Object> shown = new TreeMap<>();
            map.forEach((key, value) -> shown.put(String.valueOf(key), shown(value)));
            return shown;
        }
        try {
            return JSON.readTree(JSON.writeValueAsString(result));
        } catch (com.fasterxml.jackson.core.JsonProcessingException error) {
            return String.valueOf(result).replaceAll("@[0-9a-f]+", "");
        }
    }
}
