#!/usr/bin/env bash
# Commands of the health check in test/divo_pulsar_test.exs of jeffgrunewald/divo_pulsar, which runs every few seconds.
for turn in 1 2; do
    bin/pulsar-admin tenants create indexing
    bin/pulsar-admin namespaces create indexing/test
    bin/pulsar-admin topics create persistent://indexing/test/raw.json
    bin/pulsar-admin topics create persistent://indexing/test/sanitized.json
    bin/pulsar-admin topics list indexing/test | sort
done
