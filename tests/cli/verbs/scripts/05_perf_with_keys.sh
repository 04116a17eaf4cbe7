#!/usr/bin/env bash
# Commands of issues/issue22601/create_ns.sh, produce.sh and consume.sh in lhotari/pulsar-playground, ended by -m.
set -e
pulsar-admin tenants create my-tenant
pulsar-admin namespaces create my-tenant/my-namespace
pulsar-perf produce persistent://my-tenant/my-namespace/my-topic-1 -r 6000 -kb -s 2000 -bp 2 -bm 1000 -b 1 -mk random \
    -m 300 2> /dev/null > /dev/null
pulsar-perf consume persistent://my-tenant/my-namespace/my-topic-1 -n 10 -sp Earliest -ss angus_test --batch-index-ack \
    -st Key_Shared -m 300 2> /dev/null > /dev/null
pulsar-admin topics subscriptions persistent://my-tenant/my-namespace/my-topic-1
