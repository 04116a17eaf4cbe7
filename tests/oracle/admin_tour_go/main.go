// Calls the published Go admin client, a few hundred times, and prints one JSON line per call: its name, and its
// result or the error. The first answers of these calls are in tests/e2e/tours (recorder.py runs this there).
//
//	go run . WEB_URL TENANT TOPIC LEDGER BROKER
//
// TENANT does not exist yet; TOPIC holds entries since ledger LEDGER and has the subscription `all`. Before each call
// its name is sent to WEB_URL/-/call/NAME, so that a proxy there knows what the next requests belong to.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

var (
	webURL   string
	admin    pulsaradmin.Client
	policies pulsaradmin.TopicPolicies
	times    = map[string]int{}
)

func main() {
	webURL = os.Args[1]
	tenant, entries, broker := os.Args[2], os.Args[3], os.Args[5]
	ledger, err := strconv.ParseInt(os.Args[4], 10, 64)
	must(err)
	admin, err = pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: webURL})
	must(err)
	policies, err = pulsaradmin.TopicPoliciesOf(admin, false)
	must(err)
	space := tenant + "/space"
	one, typed := "persistent://"+space+"/one", "persistent://"+space+"/typed"
	brokers(broker)
	clusters(tenant)
	tenants(tenant)
	namespaces(tenant, space)
	namespacePolicies(tenant, space)
	topics(space, entries, ledger)
	topicPolicies(one)
	schemas(typed)
	ends(tenant, space)
}

func brokers(broker string) {
	call("Brokers.GetListActiveBrokers")
	call("Brokers.GetActiveBrokers", "standalone")
	call("Brokers.GetLeaderBroker")
	call("Brokers.GetOwnedNamespaces", "standalone", broker)
	call("Brokers.GetDynamicConfigurationNames")
	call("Brokers.GetAllDynamicConfigurations")
	call("Brokers.UpdateDynamicConfiguration", "maxProducersPerTopic", "50")
	call("Brokers.GetAllDynamicConfigurations")
	call("Brokers.DeleteDynamicConfiguration", "maxProducersPerTopic")
	call("Brokers.UpdateDynamicConfiguration", "noSuchSetting", "1")
	call("Brokers.GetRuntimeConfigurations")
	call("Brokers.GetInternalConfigurationData")
	call("Brokers.HealthCheck")
	call("Brokers.HealthCheckWithTopicVersion", utils.TopicVersionV2)
	call("BrokerStats.GetMetrics")
	call("BrokerStats.GetMBeans")
	call("BrokerStats.GetTopics")
	call("BrokerStats.GetLoadReport")
	call("BrokerStats.GetAllocatorStats", "default")
	call("ResourceQuotas.GetDefaultResourceQuota")
}

func clusters(tenant string) {
	far := tenant + "-far"
	data := utils.ClusterData{Name: far, ServiceURL: "http://far:8080", BrokerServiceURL: "pulsar://far:6650"}
	call("Clusters.List")
	call("Clusters.Get", "standalone")
	call("Clusters.Get", "absent")
	call("Clusters.Create", data)
	call("Clusters.Create", data)
	call("Clusters.Get", far)
	call("Clusters.Update", utils.ClusterData{Name: far, ServiceURL: "http://far:8081"})
	call("Clusters.Get", far)
	call("Clusters.UpdatePeerClusters", far, []string{"standalone"})
	call("Clusters.GetPeerClusters", far)
	call("Clusters.UpdatePeerClusters", far, []string{"absent"})
	domain := utils.FailureDomainData{ClusterName: far, DomainName: "rack", BrokerList: []string{"b1"}}
	call("Clusters.ListFailureDomains", far)
	call("Clusters.CreateFailureDomain", domain)
	call("Clusters.GetFailureDomain", far, "rack")
	call("Clusters.UpdateFailureDomain", domain)
	call("Clusters.DeleteFailureDomain", domain)
	isolation := utils.NamespaceIsolationData{
		Namespaces: []string{"other/.*"}, Primary: []string{"broker-a.*"}, Secondary: []string{"broker-b.*"},
		AutoFailoverPolicy: utils.AutoFailoverPolicyData{
			PolicyType: "min_available", Parameters: map[string]string{"min_limit": "1", "usage_threshold": "80"}},
	}
	call("NsIsolationPolicy.CreateNamespaceIsolationPolicy", "standalone", tenant, isolation)
	call("NsIsolationPolicy.GetNamespaceIsolationPolicy", "standalone", tenant)
	call("NsIsolationPolicy.GetNamespaceIsolationPolicies", "standalone")
	call("NsIsolationPolicy.GetBrokersWithNamespaceIsolationPolicy", "standalone")
	call("NsIsolationPolicy.DeleteNamespaceIsolationPolicy", "standalone", tenant)
	call("NsIsolationPolicy.GetNamespaceIsolationPolicy", "standalone", tenant)
	call("Clusters.Delete", far)
	call("Clusters.Delete", far)
}

func tenants(tenant string) {
	data := utils.TenantData{Name: tenant, AdminRoles: []string{"boss"}, AllowedClusters: []string{"standalone"}}
	call("Tenants.Create", data)
	call("Tenants.Create", data)
	call("Tenants.Create", utils.TenantData{Name: tenant + "-bad", AllowedClusters: []string{"absent"}})
	call("Tenants.List")
	call("Tenants.Get", tenant)
	call("Tenants.Get", "absent")
	data.AdminRoles = []string{"a", "b"}
	call("Tenants.Update", data)
	call("Tenants.Get", tenant)
	call("Tenants.Delete", "absent")
}

func namespaces(tenant, space string) {
	four, halves := tenant+"/four", tenant+"/halves"
	call("Namespaces.CreateNamespace", space)
	call("Namespaces.CreateNamespace", space)
	call("Namespaces.CreateNamespace", "absent/one")
	// The real broker fails on namespaces without clusters.
	call("Namespaces.CreateNsWithNumBundles", tenant+"/counted", 4)
	call("Namespaces.DeleteNamespace", tenant+"/counted")
	call("Namespaces.CreateNsWithPolices", four,
		utils.Policies{Bundles: &utils.BundlesData{NumBundles: 4}, ReplicationClusters: []string{"standalone"},
			RetentionPolicies: &utils.RetentionPolicies{RetentionTimeInMinutes: 5, RetentionSizeInMB: 6}})
	call("Namespaces.GetRetention", four)
	call("Namespaces.CreateNsWithPolices", halves,
		utils.Policies{Bundles: &utils.BundlesData{
			Boundaries: []string{"0x00000000", "0x80000000", "0xffffffff"}, NumBundles: 2},
			ReplicationClusters: []string{"standalone"}})
	call("Namespaces.GetNamespaces", tenant)
	call("Namespaces.GetNamespaces", "absent")
	call("Namespaces.GetTopics", space)
	call("Namespaces.GetPolicies", space)
	call("Namespaces.GetPolicies", tenant+"/absent")
	call("Namespaces.GrantNamespacePermission", space, "role", actions("produce"))
	call("Namespaces.GetNamespacePermissions", space)
	call("Namespaces.RevokeNamespacePermission", space, "role")
	call("Namespaces.GrantSubPermission", space, "sub", []string{"role"})
	call("Namespaces.GetSubPermissions", space)
	call("Namespaces.RevokeSubPermission", space, "sub", "role")
	call("Namespaces.SplitNamespaceBundle", halves, "0x00000000_0x80000000", true)
	call("Namespaces.UnloadNamespaceBundle", four, "0x00000000_0x40000000")
	call("Namespaces.Unload", four)
	call("Namespaces.ClearNamespaceBacklog", four)
	call("Namespaces.ClearNamespaceBacklogForSubscription", four, "sub")
	call("Namespaces.UnsubscribeNamespace", four, "sub")
	call("Namespaces.DeleteNamespaceBundle", four, "0x00000000_0x40000000")
	call("ResourceQuotas.GetNamespaceBundleResourceQuota", four, "0x00000000_0x40000000")
	call("Namespaces.DeleteNamespace", tenant+"/absent")
}

func namespacePolicies(tenant, space string) {
	halves, three := tenant+"/halves", 3
	for _, policy := range []string{"NamespaceMessageTTL", "MaxConsumersPerSubscription", "MaxConsumersPerTopic",
		"MaxProducersPerTopic", "MaxTopicsPerNamespace", "SubscriptionExpirationTime"} {
		namespacePolicy(space, policy, 7)
		call("Namespaces.Set"+policy, space, -2)
	}
	namespacePolicy(space, "Retention", utils.RetentionPolicies{RetentionTimeInMinutes: 60, RetentionSizeInMB: 100})
	namespacePolicy(space, "Persistence", utils.PersistencePolicies{BookkeeperEnsemble: 1, BookkeeperWriteQuorum: 1,
		BookkeeperAckQuorum: 1, ManagedLedgerMaxMarkDeleteRate: 2.5})
	namespacePolicy(space, "TopicAutoCreation",
		utils.TopicAutoCreationConfig{Allow: true, Type: utils.Partitioned, Partitions: &three})
	namespacePolicy(space, "InactiveTopicPolicies", inactive())
	rate := utils.DispatchRate{
		DispatchThrottlingRateInMsg: 5000, DispatchThrottlingRateInByte: 60_000, RatePeriodInSecond: 2}
	for _, policy := range []string{"DispatchRate", "SubscriptionDispatchRate", "ReplicatorDispatchRate"} {
		setAndGet(space, policy, rate)
	}
	setAndGet(space, "SubscribeRate", utils.SubscribeRate{SubscribeThrottlingRatePerConsumer: 10, RatePeriodInSecond: 30})
	setAndGet(space, "PublishRate",
		utils.PublishRate{PublishThrottlingRateInMsg: 1000, PublishThrottlingRateInByte: 100_000})
	setAndGet(space, "CompactionThreshold", 1000)
	setAndGet(space, "CompactionThreshold", 0)
	setAndGet(space, "OffloadThreshold", 1000)
	setAndGet(space, "OffloadThresholdInSeconds", 100)
	setAndGet(space, "OffloadDeleteLag", 3000)
	call("Namespaces.ClearOffloadDeleteLag", space)
	call("Namespaces.GetOffloadDeleteLag", space)
	setAndGet(space, "SchemaValidationEnforced", true)
	call("Namespaces.SetSchemaValidationEnforced", space, false)
	setAndGet(space, "SchemaCompatibilityStrategy", utils.SchemaCompatibilityStrategyBackward)
	call("Namespaces.GetSchemaAutoUpdateCompatibilityStrategy", space)
	setAndGet(space, "IsAllowAutoUpdateSchema", true)
	call("Namespaces.SetDeduplicationStatus", space, true)
	call("Namespaces.SetEncryptionRequiredStatus", space, true)
	call("Namespaces.SetEncryptionRequiredStatus", space, false)
	call("Namespaces.SetSubscriptionAuthMode", space, utils.Prefix)
	call("Namespaces.SetNamespaceReplicationClusters", space, []string{"standalone"})
	call("Namespaces.GetNamespaceReplicationClusters", space)
	call("Namespaces.SetNamespaceReplicationClusters", space, []string{"absent"})
	call("Namespaces.SetNamespaceAntiAffinityGroup", halves, "apart")
	call("Namespaces.GetNamespaceAntiAffinityGroup", halves)
	call("Namespaces.GetAntiAffinityNamespaces", tenant, "standalone", "apart")
	call("Namespaces.DeleteNamespaceAntiAffinityGroup", halves)
	call("Namespaces.SetBookieAffinityGroup", halves,
		utils.BookieAffinityGroupData{BookkeeperAffinityGroupPrimary: "a", BookkeeperAffinityGroupSecondary: "b"})
	call("Namespaces.GetBookieAffinityGroup", halves)
	call("Namespaces.DeleteBookieAffinityGroup", halves)
	call("Namespaces.UpdateProperties", space, map[string]string{"colour": "green", "shape": "a b"})
	call("Namespaces.GetProperties", space)
	call("Namespaces.RemoveProperties", space)
	call("Namespaces.GetProperties", space)
	quota := utils.NewBacklogQuota(10_000, 600, utils.ProducerException)
	call("Namespaces.GetBacklogQuotaMap", space)
	call("Namespaces.SetBacklogQuota", space, quota, utils.DestinationStorage)
	call("Namespaces.GetBacklogQuotaMap", space)
	call("Namespaces.RemoveBacklogQuota", space)
	call("Namespaces.GetPolicies", space)
}

func topics(space, entries string, ledger int64) {
	one, parted, absent := "persistent://"+space+"/one", "persistent://"+space+"/parted", "persistent://"+space+"/absent"
	call("Topics.Create", one, 0)
	call("Topics.Create", one, 0)
	call("Topics.Create", "persistent://absent/space/one", 0)
	call("Topics.CreateWithProperties", parted, 2, map[string]string{"made": "by tour"})
	call("Topics.Create", parted, 2)
	call("Topics.GetMetadata", parted)
	call("Topics.GetMetadata", one)
	call("Topics.GetMetadata", absent)
	call("Topics.Update", parted, 3)
	call("Topics.Update", parted, 1)
	call("Topics.List", space)
	call("Namespaces.GetTopics", "absent/space") // Topics.List ends while its second request is on the way
	call("Topics.GrantPermission", one, "role", actions("produce", "consume"))
	call("Topics.GetPermissions", one)
	call("Topics.RevokePermission", one, "role")
	call("Topics.RevokePermission", one, "role")
	call("Topics.UpdateProperties", one, map[string]string{"a": "1", "b": "2"})
	call("Topics.GetProperties", one)
	call("Topics.RemoveProperty", one, "a")
	call("Topics.GetProperties", one)
	call("Subscriptions.Create", one, "latest", utils.Latest)
	call("Subscriptions.Create", one, "latest", utils.Latest)
	call("Subscriptions.Create", one, "early", utils.Earliest)
	call("Subscriptions.Create", parted, "sub", utils.Latest)
	call("Subscriptions.List", one)
	call("Subscriptions.List", parted)
	call("Subscriptions.Delete", one, "latest")
	call("Subscriptions.Delete", one, "latest")
	call("Subscriptions.ForceDelete", one, "early")
	call("Topics.GetStats", one)
	call("Topics.GetStats", absent)
	call("Topics.GetStats", entries)
	call("Topics.GetStatsWithOption", entries, utils.GetStatsOptions{
		GetPreciseBacklog: true, SubscriptionBacklogSize: true, GetEarliestTimeInBacklog: true})
	call("Topics.GetInternalStats", entries)
	call("Topics.GetInternalInfo", entries)
	call("Topics.GetPartitionedStats", parted, true)
	call("Topics.GetPartitionedStats", parted, false)
	call("Subscriptions.PeekMessages", entries, "all", 3)
	for entry := range int64(16) {
		call("Subscriptions.GetMessagesByID", entries, ledger, entry)
	}
	call("Subscriptions.GetMessageByID", entries, ledger, 0)
	call("Subscriptions.GetMessageByID", entries, ledger, 1000)
	call("Topics.GetLastMessageID", entries)
	call("Topics.GetMessageID", entries, int64(1_700_000_005_000))
	call("Subscriptions.SkipMessages", entries, "all", 2)
	call("Topics.GetStats", entries)
	call("Subscriptions.ResetCursorToTimestamp", entries, "all", int64(1_700_000_003_000))
	call("Subscriptions.ResetCursorToMessageID", entries, "all", utils.MessageID{LedgerID: ledger, EntryID: 5, PartitionIndex: -1})
	call("Subscriptions.ResetCursorToMessageID", entries, "absent", utils.Earliest)
	call("Subscriptions.ExpireMessages", entries, "all", 1_000_000_000)
	call("Subscriptions.ExpireAllMessages", entries, 1_000_000_000)
	call("Subscriptions.PeekMessages", entries, "all", 1)
	call("Subscriptions.ClearBacklog", entries, "all")
	call("Subscriptions.ClearBacklog", entries, "absent")
	call("Subscriptions.PeekMessages", entries, "all", 1)
	call("Topics.CompactStatus", one)
	call("Topics.Compact", one)
	call("Topics.OffloadStatus", one)
	call("Topics.Offload", one, utils.Latest)
	call("Topics.Unload", one)
	call("Topics.Terminate", entries)
	call("Topics.Lookup", one)
	call("Topics.GetBundleRange", one)
	call("Topics.Delete", parted, false, false)
	call("Topics.Delete", parted, false, false)
	call("Topics.Delete", entries, false, true)
	call("Topics.Delete", entries, true, true)
}

func topicPolicies(topic string) {
	for _, policy := range []string{"MessageTTL", "MaxProducers", "MaxConsumers", "MaxUnackMessagesPerConsumer",
		"MaxUnackMessagesPerSubscription", "MaxConsumersPerSubscription", "MaxMessageSize",
		"MaxSubscriptionsPerTopic", "DeduplicationSnapshotInterval"} {
		topicPolicy(topic, policy, 700)
		call("TopicPolicies.Set"+policy, topic, -5)
		call("Topics.Get"+policy, topic)
	}
	topicPolicy(topic, "CompactionThreshold", 700)
	topicPolicy(topic, "Persistence", utils.PersistenceData{BookkeeperEnsemble: 1, BookkeeperWriteQuorum: 1,
		BookkeeperAckQuorum: 1, ManagedLedgerMaxMarkDeleteRate: 2.5})
	topicPolicy(topic, "DelayedDelivery", utils.DelayedDeliveryData{TickTime: 1500, Active: true})
	rate := utils.DispatchRateData{
		DispatchThrottlingRateInMsg: 5000, DispatchThrottlingRateInByte: 60_000, RatePeriodInSecond: 2}
	for _, policy := range []string{"DispatchRate", "SubscriptionDispatchRate", "ReplicatorDispatchRate"} {
		topicPolicy(topic, policy, rate)
	}
	topicPolicy(topic, "PublishRate",
		utils.PublishRateData{PublishThrottlingRateInMsg: 1000, PublishThrottlingRateInByte: 100_000})
	topicPolicy(topic, "SubscribeRate",
		utils.SubscribeRate{SubscribeThrottlingRatePerConsumer: 10, RatePeriodInSecond: 30})
	topicPolicy(topic, "DeduplicationStatus", true)
	topicPolicy(topic, "Retention", utils.RetentionPolicies{RetentionTimeInMinutes: 60, RetentionSizeInMB: 100})
	topicPolicy(topic, "InactiveTopicPolicies", inactive())
	topicPolicy(topic, "ReplicationClusters", []string{"standalone"})
	topicPolicy(topic, "OffloadPolicies",
		utils.OffloadPolicies{ManagedLedgerOffloadDriver: "filesystem", ManagedLedgerOffloadThresholdInBytes: 1000})
	topicPolicy(topic, "AutoSubscriptionCreation",
		utils.AutoSubscriptionCreationOverride{AllowAutoSubscriptionCreation: true})
	topicPolicy(topic, "SchemaCompatibilityStrategy", utils.SchemaCompatibilityStrategyFull)
	topicPolicy(topic, "SchemaValidationEnforced", true)
	quota := utils.NewBacklogQuota(10_000, 600, utils.ProducerException)
	call("TopicPolicies.GetBacklogQuotaMap", topic, true)
	call("TopicPolicies.SetBacklogQuota", topic, quota, utils.MessageAge)
	call("TopicPolicies.GetBacklogQuotaMap", topic, false)
	call("TopicPolicies.RemoveBacklogQuota", topic, utils.MessageAge)
}

func schemas(topic string) {
	const field = `{"name":"a","type":"string"}`
	first, second := avro(field), avro(field+`,{"name":"b","type":["null","int"],"default":null}`)
	call("Topics.Create", topic, 0)
	call("Schemas.GetSchemaInfo", topic)
	call("Schemas.CreateSchemaByPayload", topic, first)
	call("Schemas.GetSchemaInfo", topic)
	call("Schemas.TestCompatibilityWithPostSchemaPayload", topic, second)
	call("Schemas.CreateSchemaByPayload", topic, second)
	call("Schemas.CreateSchemaByPayload", topic, avro(`{"name":"a","type":"int"}`))
	call("Schemas.GetSchemaInfoWithVersion", topic)
	call("Schemas.GetSchemaInfoByVersion", topic, 0)
	call("Schemas.GetSchemaInfoByVersion", topic, 9)
	call("Schemas.GetAllSchemas", topic)
	call("Schemas.GetVersionByPayload", topic, first)
	call("Schemas.DeleteSchema", topic)
	call("Schemas.GetSchemaInfo", topic)
	call("Schemas.ForceDeleteSchema", topic)
}

func ends(tenant, space string) {
	call("Namespaces.DeleteNamespace", space)
	call("Tenants.Delete", tenant)
	call("Topics.Delete", "persistent://"+space+"/one", false, true)
	call("Topics.Delete", "persistent://"+space+"/typed", false, true)
	call("Namespaces.DeleteNamespace", space)
	call("Namespaces.DeleteNamespace", tenant+"/four")
	call("Namespaces.DeleteNamespace", tenant+"/halves")
	call("Tenants.Delete", tenant)
	call("Tenants.List")
}

func namespacePolicy(space, policy string, value any) {
	call("Namespaces.Get"+policy, space)
	setAndGet(space, policy, value)
	call("Namespaces.Remove"+policy, space)
	call("Namespaces.Get"+policy, space)
}

func setAndGet(space, policy string, value any) {
	call("Namespaces.Set"+policy, space, value)
	call("Namespaces.Get"+policy, space)
}

func topicPolicy(topic, policy string, value any) {
	call("TopicPolicies.Get"+policy, topic, true)
	call("TopicPolicies.Set"+policy, topic, value)
	call("TopicPolicies.Get"+policy, topic, false)
	call("TopicPolicies.Remove"+policy, topic)
	call("TopicPolicies.Get"+policy, topic, false)
}

func inactive() utils.InactiveTopicPolicies {
	mode := utils.DeleteWhenNoSubscriptions
	return utils.NewInactiveTopicPolicies(&mode, 3600, true)
}

func avro(fields string) utils.PostSchemaPayload {
	return utils.PostSchemaPayload{SchemaType: "AVRO", Properties: map[string]string{"from": "tour"},
		Schema: `{"type":"record","name":"Row","fields":[` + fields + `]}`}
}

func actions(names ...string) []utils.AuthAction {
	found := []utils.AuthAction{}
	for _, name := range names {
		action, err := utils.ParseAuthAction(name)
		must(err)
		found = append(found, action)
	}
	return found
}

// call calls `API.Method` with these arguments and prints its line.
func call(name string, arguments ...any) {
	times[name]++
	unique := name
	if times[name] > 1 {
		unique = fmt.Sprintf("%s-%d", name, times[name])
	}
	response, err := http.Get(webURL + "/-/call/" + unique)
	must(err)
	must(response.Body.Close())
	api, method, _ := strings.Cut(name, ".")
	target := reflect.ValueOf(policies)
	if api != "TopicPolicies" {
		target = reflect.ValueOf(admin).MethodByName(api).Call(nil)[0]
	}
	function := target.MethodByName(method)
	if !function.IsValid() {
		must(fmt.Errorf("there is no %s", name))
	}
	if function.Type().NumIn() > 0 && function.Type().In(0) == reflect.TypeFor[context.Context]() {
		arguments = append([]any{context.Background()}, arguments...)
	}
	given := []reflect.Value{}
	for i, argument := range arguments {
		given = append(given, converted(argument, function.Type().In(i)))
	}
	results := function.Call(given)
	line := map[string]any{"call": unique}
	last := len(results) - 1
	if err, failed := results[last].Interface().(error); failed {
		var refused rest.Error
		line["exception"] = fmt.Sprintf("%T", err)
		if errors.As(err, &refused) {
			line["status"], line["reason"] = refused.Code, refused.Reason
		}
	} else {
		shown := []any{}
		for _, result := range results[:last] {
			shown = append(shown, result.Interface())
		}
		line["result"] = shown
	}
	text, err := json.Marshal(line)
	must(err)
	fmt.Println("TOUR " + string(text))
}

// converted turns the text of a name into its type, and a number into another kind of number.
func converted(argument any, kind reflect.Type) reflect.Value {
	text, isText := argument.(string)
	if isText && kind == reflect.TypeFor[utils.NameSpaceName]() {
		name, err := utils.GetNamespaceName(text)
		must(err)
		return reflect.ValueOf(*name)
	} else if isText && kind == reflect.TypeFor[utils.TopicName]() {
		name, err := utils.GetTopicName(text)
		must(err)
		return reflect.ValueOf(*name)
	} else if value := reflect.ValueOf(argument); value.CanInt() {
		return value.Convert(kind)
	}
	return reflect.ValueOf(argument)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "admin tour:", err)
		os.Exit(1)
	}
}
