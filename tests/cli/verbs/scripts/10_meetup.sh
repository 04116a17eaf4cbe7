#!/usr/bin/env bash
# Commands of README.md in tspannhw/Meetup-YourFirstEventDrivenApp; a consumer of one message, as it would wait for ever.
set -e
bin/pulsar-admin tenants create meetup
bin/pulsar-admin namespaces create meetup/newjersey
bin/pulsar-admin tenants list | grep meetup
bin/pulsar-admin namespaces list meetup
bin/pulsar-admin topics create persistent://meetup/newjersey/first
bin/pulsar-admin topics list meetup/newjersey
bin/pulsar-client produce "persistent://meetup/newjersey/first" -m first > /dev/null
bin/pulsar-client consume "persistent://meetup/newjersey/first" -s mqtt-reader -p Earliest -n 1 | grep -o 'content:.*'
curl -s "$PULSAR_ADMIN_URL/admin/v2/persistent/meetup/newjersey/first/stats" | python3 -m json.tool | grep msgInCounter
bin/pulsar-admin topics stats-internal persistent://meetup/newjersey/first | grep numberOfEntries
bin/pulsar-admin topics peek-messages --count 5 --subscription mqtt-reader persistent://meetup/newjersey/first
bin/pulsar-admin topics subscriptions persistent://meetup/newjersey/first
bin/pulsar-admin topics delete persistent://meetup/newjersey/first
bin/pulsar-admin namespaces delete meetup/newjersey
bin/pulsar-admin tenants delete meetup
