#!/bin/sh
# One address for several `gruff serve` workers: PyPI's vllm-router (pip install vllm-router==0.1.17), which sends a
# request to the worker that has seen most of its prompt, and to another when that one is loaded or gone.
#
#   WORKERS="http://10.0.0.1:8000 http://10.0.0.2:8000" GRUFF_API_KEY=… sh deploy/router.sh
#
# The key that clients show goes on to the workers, which check it; the router knows it for its own questions.
set -eu

# A worker with 4 answers more than another, and half as many again, is left aside whatever it has seen: at this size
# waiting costs more than reading a prompt again.
# shellcheck disable=SC2086 # the workers are several words
exec vllm-router \
    --worker-urls ${WORKERS:?names the workers, separated by spaces} \
    --host "${HOST:-0.0.0.0}" --port "${PORT:-8000}" \
    --prometheus-host "${METRICS_HOST:-127.0.0.1}" --prometheus-port "${METRICS_PORT:-29000}" \
    --policy cache_aware --cache-threshold 0.5 --balance-abs-threshold 4 --balance-rel-threshold 1.5 \
    --health-check-endpoint /health --health-check-interval-secs 2 --health-check-timeout-secs 2 \
    --health-failure-threshold 2 --health-success-threshold 1 \
    --worker-startup-timeout-secs 600 --worker-startup-check-interval 1 \
    --retry-max-retries 5 --retry-initial-backoff-ms 50 --retry-max-backoff-ms 2000 \
    --cb-failure-threshold 3 --cb-timeout-duration-secs 5 \
    --request-timeout-secs 3600 --max-payload-size 33554432 \
    ${GRUFF_API_KEY:+--api-key "$GRUFF_API_KEY"}
