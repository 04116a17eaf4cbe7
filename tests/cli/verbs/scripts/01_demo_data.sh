#!/usr/bin/env bash
# Commands of demodata/setup-demodata.sh in amosproj/amos2023ss01-apache-pulsar-ui.
ADMIN="bin/pulsar-admin --admin-url $PULSAR_ADMIN_URL"
$ADMIN tenants create neuron-demo
$ADMIN namespaces create neuron-demo/customer
$ADMIN topics create neuron-demo/customer/command.create-customer.v1
$ADMIN topics create neuron-demo/customer/command.close-customer.v1
$ADMIN topics set-message-ttl neuron-demo/customer/command.close-customer.v1 --ttl 30
$ADMIN tenants create rbi-demo
$ADMIN namespaces create rbi-demo/customer
$ADMIN namespaces set-retention -s 5M -t 2h rbi-demo/customer
$ADMIN topics create rbi-demo/customer/event.neuron-demo-customer.v1
$ADMIN topics enable-deduplication rbi-demo/customer/event.neuron-demo-customer.v1
$ADMIN topics set-deduplication-snapshot-interval rbi-demo/customer/event.neuron-demo-customer.v1 -i 10
$ADMIN topics get-message-ttl neuron-demo/customer/command.close-customer.v1
$ADMIN namespaces set-retention -s 5M -t 2h neuron-demo/customer
$ADMIN topics stats neuron-demo/customer/command.create-customer.v1 | grep -c msgInCounter
$ADMIN topics create-partitioned-topic neuron-demo/customer/event.customer.v1 -p 10
$ADMIN topics clear-backlog -s tech-rbi neuron-demo/customer/command.create-customer.v1 || echo "no such subscription"
$ADMIN topics list neuron-demo/customer | sort
$ADMIN topics delete-partitioned-topic neuron-demo/customer/event.customer.v1
$ADMIN topics delete neuron-demo/customer/event.customer.v1 || echo "it is gone"
$ADMIN namespaces delete neuron-demo/customer || echo "it is not empty"
$ADMIN tenants create neuron-demo || echo "tenant exists"
