#!/usr/bin/env bash
# Commands of lab1/pub-sub.md in datastaxdevs/workshop-intro-streaming-and-cdc.
set -e
./bin/pulsar-client produce -m "Hello there" -n 2 persistent://public/default/my-first-topic \
    | grep -o '2 messages successfully produced'
for turn in 1 2; do
    ./bin/pulsar-client consume -p Earliest -t Shared -n 1 -s "my-subscription" \
        persistent://public/default/my-first-topic | grep -oE 'key:.*|1 messages.*'
done
