/* Flags that Miles passes to SGLang's servers and to its router.  The names are those of
 * SGLang at commit cce0a12, and older ones that launch scripts use. */
#include "cli/flags/flag_family.h"

const ml_flag_family ml_flag_families[] = {
    { "sglang-", ML_FLAG_NOOP, "there is one implementation, which is deterministic",
      "speculative-attention-mode speculative-draft-attention-backend "
      "speculative-moe-a2a-backend speculative-moe-runner-backend "
      "attention-backend decode-attention-backend prefill-attention-backend "
      "sampling-backend bf16-gemm-backend fp4-gemm-backend fp4-gemm-runner-backend "
      "fp8-gemm-backend fp8-gemm-runner-backend moe-runner-backend moe-a2a-backend "
      "deepep-mode deepep-config deepep-dispatcher-output-dtype fuseep-mode "
      "linear-attn-backend linear-attn-decode-backend linear-attn-prefill-backend "
      "linear-attn-verify-backend mamba-backend nsa-decode-backend "
      "nsa-prefill-backend nsa-prefill-cp-mode dsa-decode-backend "
      "dsa-prefill-backend dsa-paged-mqa-logits-backend dsa-topk-backend "
      "dsa-prefill-cp-mode dsv4-prefill-backend flashinfer-mla-disable-ragged "
      "flashinfer-allreduce-fusion-backend flashinfer-autotune-skip-ops "
      "disable-flashinfer-autotune disable-flashinfer-cutlass-moe-fp4-allgather "
      "enable-flashinfer-allreduce-fusion "
      "enforce-disable-flashinfer-allreduce-fusion enable-aiter-allreduce-fusion "
      "enable-fused-moe-sum-all-reduce enable-fused-qk-norm-rope "
      "disable-shared-experts-fusion enforce-shared-experts-fusion "
      "enable-deterministic-inference rl-on-policy-target true-on-policy-contract "
      "triton-attention-num-kv-splits triton-attention-reduce-in-fp32 "
      "triton-attention-split-tile-size enable-torch-compile "
      "enable-torch-compile-debug-mode torch-compile-max-bs enable-scattered-sconv "
      "enable-precise-embedding-interpolation enable-fp32-lm-head "
      "disable-chunked-prefix-cache model-impl enable-mixed-chunk "
      "enable-tp-lm-head-all-to-all mm-attention-backend enable-page-major-kv-layout "
      "c128-page-size enable-single-batch-overlap enable-two-batch-overlap "
      "tbo-token-distribution-threshold enable-ep-moe enable-deepep-moe "
      "enable-flashinfer-mla enable-linear-replayssm linear-replayssm-cache-len "
      "mamba-ssm-dtype" },
    { "sglang-", ML_FLAG_NOOP,
      "decode steps are captured as CUDA graphs of up to --sglang-cuda-graph-max-bs rows, "
      "and prefill steps are not",
      "cuda-graph-backend-decode cuda-graph-backend-prefill cuda-graph-bs "
      "cuda-graph-bs-decode cuda-graph-bs-prefill cuda-graph-config "
      "cuda-graph-max-bs-prefill cuda-graph-tc-compiler debug-cuda-graph "
      "disable-cuda-graph-padding disable-piecewise-cuda-graph "
      "enable-piecewise-cuda-graph disable-prefill-cuda-graph "
      "enable-breakable-cuda-graph enable-cudagraph-gc enable-profile-cuda-graph "
      "enforce-piecewise-cuda-graph piecewise-cuda-graph-compiler "
      "piecewise-cuda-graph-max-tokens piecewise-cuda-graph-tokens" },
    { "sglang-", ML_FLAG_NOOP,
      "collectives have one implementation, whose results do not depend on the transport",
      "disable-custom-all-reduce enable-mscclpp enable-nccl-nvls enable-p2p-check "
      "enable-symm-mem enable-torch-symm-mem pre-warm-nccl "
      "enable-attn-tp-input-scattered disable-attn-tp-gather nccl-init-addr "
      "nccl-port dist-timeout enable-dp-attention-local-control-broadcast "
      "dcp-comm-backend numa-node mooncake-ib-device" },
    { "sglang-", ML_FLAG_REFUSED, "the run places its engines; remove the flag",
      "nnodes node-rank dist-init-addr base-gpu-id gpu-id-step use-ray" },
    { "sglang-", ML_FLAG_REFUSED,
      "this division of an engine among ranks is not supported; use --sglang-tp-size, "
      "--sglang-ep-size",
      "attention-context-parallel-size attn-cp-size moe-data-parallel-size "
      "moe-dp-size decode-context-parallel-size dcp-size dcp-replicate-q-proj "
      "dwdp-size cp-strategy enable-prefill-context-parallel enable-prefill-cp "
      "prefill-cp-mode enable-nsa-prefill-context-parallel "
      "enable-dsa-prefill-context-parallel enable-cp-decode-attn-tp "
      "enable-dsa-cache-layer-split load-balance-method prefill-round-robin-balance "
      "pp-async-batch-depth pp-max-micro-batch-size enable-quant-communications" },
    { "sglang-", ML_FLAG_NOOP,
      "the results do not depend on the schedule, and the engine has one",
      "schedule-policy schedule-conservativeness scheduler-recv-interval "
      "num-continuous-decode-steps num-reserved-decode-tokens max-prefill-tokens "
      "max-queued-requests prefill-max-requests prefill-decode-interval "
      "enable-dynamic-chunking enable-prefill-delayer "
      "prefill-delayer-forward-passes-buckets prefill-delayer-max-delay-ms "
      "prefill-delayer-max-delay-passes prefill-delayer-queue-min-ratio "
      "prefill-delayer-token-usage-low-watermark "
      "prefill-delayer-wait-seconds-buckets min-free-slots-delay "
      "optimistic-prefill-attempts retraction-policy radix-eviction-policy "
      "radix-cache-backend enable-session-radix-cache strip-thinking-cache "
      "swa-full-tokens-ratio disable-hybrid-swa-memory page-size sleep-on-idle "
      "mamba-scheduler-strategy mamba-radix-cache-strategy mamba-full-memory-ratio "
      "mamba-max-states-per-path mamba-track-interval max-mamba-cache-size "
      "uses-mamba-radix-cache gc-threshold gc-warning-threshold-secs "
      "server-concurrency enable-unified-memory batch-notify-size "
      "enable-waterfill" },
    { "sglang-", ML_FLAG_REFUSED, "requests of a rollout have no priorities",
      "abort-on-priority-when-disabled default-priority-value "
      "disable-priority-preemption enable-priority-scheduling "
      "priority-scheduling-preemption-threshold schedule-low-priority-values-first" },
    { "sglang-", ML_FLAG_NOOP, "the engine of a run is not a server for others",
      "host port fastapi-root-path api-key admin-api-key served-model-name "
      "ssl-ca-certs ssl-certfile ssl-keyfile ssl-keyfile-password enable-ssl-refresh "
      "uvicorn-access-log-exclude-prefixes enable-http2 http2-max-concurrent-streams "
      "grpc-mode grpc-port grpc-http-sidecar-port smg-grpc-mode "
      "smg-http-sidecar-port sidecar sidecar-args tool-server file-storage-path "
      "stream-interval stream-output stream-response-default-include-usage "
      "incremental-streaming-output skip-server-warmup warmups watchdog-timeout "
      "soft-watchdog-timeout custom-sigquit-handler tokenizer-worker-num "
      "detokenizer-worker-num enable-streaming-session allow-auto-truncate "
      "engine-info-bootstrap-port weight-version "
      "checkpoint-engine-wait-weights-before-ready enable-cache-report" },
    { "sglang-", ML_FLAG_NOOP, "the engine receives and returns tokens, not text",
      "tokenizer-path tokenizer-mode tokenizer-backend skip-tokenizer-init "
      "enable-tokenizer-batch-encode disable-tokenizer-batch-decode "
      "enable-dynamic-batch-tokenizer dynamic-batch-tokenizer-batch-size "
      "dynamic-batch-tokenizer-batch-timeout chat-template completion-template "
      "hf-chat-template-name default-chat-template-kwargs reasoning-parser "
      "tool-call-parser enable-strict-thinking" },
    { "sglang-", ML_FLAG_NOOP, "rollouts are not constrained by a grammar",
      "grammar-backend constrained-json-disable-any-whitespace "
      "constrained-json-whitespace-pattern disable-outlines-disk-cache" },
    { "sglang-", ML_FLAG_NOOP, "sampling is defined by the --rollout-* and --eval-* flags",
      "preferred-sampling-params sampling-defaults" },
    { "sglang-", ML_FLAG_NOOP,
      "the log and metrics.jsonl of the run have the state of the engine; --log-level sets "
      "the verbosity",
      "log-level log-level-http log-requests log-requests-format log-requests-level "
      "log-requests-target log-dir decode-log-interval show-time-cost enable-metrics "
      "enable-metrics-for-all-schedulers enable-mfu-metrics "
      "enable-request-time-stats-logging enable-expert-distribution-metrics "
      "collect-tokens-histogram bucket-e2e-request-latency "
      "bucket-inter-token-latency bucket-time-to-first-token "
      "generation-tokens-buckets prompt-tokens-buckets extra-metric-labels "
      "tokenizer-metrics-allowed-custom-labels "
      "tokenizer-metrics-custom-labels-header load-snapshot-publish-interval "
      "stat-loggers" },
    { "sglang-", ML_FLAG_REFUSED,
      "use --profile for traces, metrics.jsonl in --save for metrics",
      "enable-trace trace-modules otlp-traces-endpoint enable-layerwise-nvtx-marker "
      "crash-dump-folder export-metrics-to-file export-metrics-to-file-dir "
      "enable-forward-pass-metrics forward-pass-metrics-ipc-name "
      "forward-pass-metrics-worker-id kv-events-config spec-trace-dir" },
    { "sglang-", ML_FLAG_REFUSED,
      "use --dumper-enable, which writes the output of every op",
      "debug-tensor-dump-input-file debug-tensor-dump-layers "
      "debug-tensor-dump-output-folder msprobe-dump-config" },
    { "sglang-", ML_FLAG_NOOP, "the engine has the weights of the trainer",
      "load-format download-dir revision delete-ckpt-after-loading "
      "model-loader-extra-config custom-weight-loader startup-weight-load-mode "
      "weight-cache-mode weight-cache-socket weight-cache-timeout "
      "weight-loader-disable-mmap weight-loader-drop-cache-after-load "
      "weight-loader-prefetch-checkpoints weight-loader-prefetch-num-threads "
      "remote-instance-weight-loader-backend remote-instance-weight-loader-ib-device "
      "remote-instance-weight-loader-seed-instance-ip "
      "remote-instance-weight-loader-seed-instance-service-port "
      "remote-instance-weight-loader-send-weights-group-ports "
      "remote-instance-weight-loader-start-seed-via-transfer-engine model-checksum "
      "model-config-parser modelexpress-config enable-weights-cpu-backup "
      "enable-draft-weights-cpu-backup enable-memory-saver decrypted-config-file "
      "decrypted-draft-config-file trust-remote-code" },
    { "sglang-", ML_FLAG_REFUSED, "engine and trainer have one model; use --hf-checkpoint",
      "model model-path" },
    { "sglang-", ML_FLAG_REFUSED, "use --rollout-seed", "random-seed" },
    { "sglang-", ML_FLAG_NOOP,
      "engine and trainer share the weights; use --dtype and --device", "dtype device" },
    { "sglang-", ML_FLAG_NOOP,
      "they are recorded when --use-rollout-routing-replay or --use-rollout-indexer-replay "
      "needs them",
      "enable-return-routed-experts enable-return-indexer-topk" },
    { "sglang-", ML_FLAG_REFUSED,
      "the architecture is defined by config.json; change it there",
      "json-model-override-args" },
    { "sglang-", ML_FLAG_REFUSED,
      "engine and trainer share the weights; use --base-quantization",
      "quantization quantization-param-path quantize-and-serve rl-quant-profile "
      "modelopt-checkpoint-restore-path modelopt-checkpoint-save-path "
      "modelopt-export-path modelopt-quant torchao-config enable-w4a4-mxfp4-megamoe "
      "enable-deepseek-v4-fp4-indexer flashinfer-mxfp4-moe-precision "
      "enable-int8-mamba-checkpoint int8-mamba-ckpt-size "
      "enable-mamba-cache-stochastic-rounding mamba-cache-philox-rounds "
      "enable-tf32-matmul" },
    { "sglang-", ML_FLAG_REFUSED,
      "this kind of speculative decoding is not supported; remove the flag",
      "decoupled-spec-bind-endpoint decoupled-spec-connect-endpoints "
      "decoupled-spec-rank decoupled-spec-role speculative-accept-threshold-acc "
      "speculative-accept-threshold-single speculative-adaptive "
      "speculative-adaptive-config "
      "speculative-dflash-block-size speculative-dflash-draft-window-size "
      "speculative-draft-kv-cache-dtype "
      "speculative-draft-load-format speculative-draft-model "
      "speculative-draft-model-quantization "
      "speculative-draft-model-revision speculative-draft-window-size "
      "speculative-dspark-align-verify-tokens-to-graph-tier "
      "speculative-dspark-block-size speculative-dspark-confidence-sts-path "
      "speculative-dspark-sps-table-path "
      ""
      "speculative-ngram-capacity speculative-ngram-external-corpus-max-tokens "
      "speculative-ngram-external-corpus-path speculative-ngram-external-sam-budget "
      "speculative-ngram-match-type speculative-ngram-max-bfs-breadth "
      "speculative-ngram-max-trie-depth speculative-ngram-min-bfs-breadth "
      ""
      "speculative-skip-dp-mlp-sync speculative-token-map "
      "speculative-use-rejection-sampling enable-multi-layer-eagle "
      "enable-gdn-replayssm-spec enable-linear-replayssm-spec" },
    { "sglang-", ML_FLAG_NOOP, "the engine has the adapter that is trained",
      "enable-lora enable-lora-overlap-loading experts-shared-outer-loras "
      "lora-backend lora-drain-wait-threshold lora-eviction-policy "
      "lora-strict-loading lora-target-modules lora-use-virtual-experts "
      "max-loaded-loras max-lora-chunk-size max-lora-rank max-loras-per-batch" },
    { "sglang-", ML_FLAG_REFUSED, "a run has the adapter of --lora-rank alone",
      "lora-paths" },
    { "sglang-", ML_FLAG_REFUSED, "vision models are not supported",
      "enable-multimodal allowed-media-domains asr-max-buffer-seconds "
      "asr-max-concurrent-sessions disable-fast-image-processor "
      "enable-adaptive-dispatch-to-encoder enable-broadcast-mm-inputs-process "
      "enable-mm-global-cache enable-prefix-mm-cache encoder-bootstrap-port "
      "encoder-only encoder-register-urls encoder-transfer-backend encoder-urls "
      "image-processor-backend keep-mm-feature-on-device limit-mm-data-per-request "
      "media-url-max-file-size-mb mm-enable-dp-encoder mm-feature-transport "
      "mm-global-cache-backend mm-io-worker-num mm-preprocess-cache-size-mb "
      "mm-process-config mm-processor-worker-num trust-mm-content-hashes" },
    { "sglang-", ML_FLAG_NOOP, "only the text model of a multimodal checkpoint is run",
      "language-only language-model-only" },
    { "sglang-", ML_FLAG_REFUSED,
      "the KV cache and the weights of an engine are in its device memory only",
      "cpu-offload-gb offload-group-size offload-mode offload-num-in-group "
      "offload-prefetch-step enable-hierarchical-cache hicache-host-memory-mode "
      "hicache-io-backend hicache-mem-layout hicache-ratio hicache-size "
      "hicache-storage-backend hicache-storage-backend-extra-config "
      "hicache-storage-prefetch-policy hicache-write-policy "
      "hierarchical-sparse-attention-extra-config enable-hisparse hisparse-config "
      "enable-lmcache lmcache-config-file enable-flexkv flexkv-config-file "
      "kt-cpuinfer kt-max-deferred-experts-per-token kt-method kt-num-gpu-experts "
      "kt-threadpool-count kt-weight-path" },
    { "sglang-", ML_FLAG_REFUSED, "prefill and decode run on the same engine",
      "disaggregation-bootstrap-port disaggregation-decode-enable-offload-kvcache "
      "disaggregation-decode-enable-radix-cache disaggregation-decode-extra-slots "
      "disaggregation-decode-polling-interval "
      "disaggregation-decode-retraction-backup disaggregation-ib-device "
      "disaggregation-mode disaggregation-transfer-backend enable-pdmux "
      "pdmux-config-path sm-group-num prefill-only-disable-kv-cache" },
    { "sglang-", ML_FLAG_REFUSED, "experts keep their rank and are not duplicated",
      "elastic-ep-backend elastic-ep-initial-size elastic-ep-join-mode "
      "elastic-ep-join-rank-offset elastic-ep-rejoin elastic-ep-scale-timeout "
      "ep-join-mode ep-join-rank-offset eplb-algorithm "
      "eplb-min-rebalancing-utilization-threshold eplb-rebalance-layers-per-chunk "
      "eplb-rebalance-num-iterations expert-balancedness-report-mode "
      "expert-distribution-recorder-buffer-size expert-distribution-recorder-mode "
      "enable-eplb enable-elastic-expert-backup ep-dispatch-algorithm "
      "ep-num-redundant-experts init-expert-location max-ep-size" },
    { "sglang-", ML_FLAG_REFUSED,
      "the engine generates tokens of autoregressive language models only",
      "is-embedding dllm-algorithm dllm-algorithm-config dllm-fdfo "
      "enable-custom-logit-processor enable-return-hidden-states "
      "return-hidden-states-mode forward-hooks enable-mis mlx-enable-sampling "
      "kv-canary kv-canary-real-data kv-canary-sweep-interval" },
    { "router-", ML_FLAG_NOOP, "the router of a run has one form of each; see miles router",
      "assignment-mode bucket-adjust-interval-secs eviction-interval-secs max-idle-secs "
      "prefill-policy decode-policy queue-size queue-timeout-secs "
      "rate-limit-tokens-per-second shutdown-grace-period-secs tcp-keepalive-secs "
      "pool-idle-timeout-secs pool-max-idle-per-host dp-aware mini-lb "
      "test-external-dp-routing worker-startup-check-interval worker-startup-timeout-secs "
      "backend request-id-headers tokenizer-path chat-template reasoning-parser "
      "tool-call-parser tokenizer-cache-enable-l0 tokenizer-cache-enable-l1 "
      "tokenizer-cache-l0-max-entries tokenizer-cache-l1-max-memory cors-allowed-origins "
      "log-level log-dir json-log prometheus-duration-buckets prometheus-host "
      "prometheus-port model-path cb-failure-threshold cb-success-threshold "
      "cb-timeout-duration-secs cb-window-duration-secs retry-backoff-multiplier "
      "retry-initial-backoff-ms retry-jitter-factor retry-max-backoff-ms "
      "disable-circuit-breaker" },
    { "router-", ML_FLAG_REFUSED,
      "the router of a run is no gateway; start miles router and use --sglang-router-ip",
      "api-key bootstrap-port-annotation ca-cert-paths client-cert-path "
      "client-key-path control-plane-api-keys control-plane-audit-enabled decode "
      "decode-selector enable-igw enable-trace enable-wasm history-backend "
      "jwt-audience jwt-issuer jwt-jwks-uri jwt-role-claim jwt-role-mapping "
      "mcp-config-path oracle-connect-descriptor oracle-password oracle-pool-max "
      "oracle-pool-min oracle-pool-timeout-secs oracle-tns-alias oracle-username "
      "oracle-wallet-path otlp-traces-endpoint pd-disaggregation postgres-db-url "
      "postgres-pool-max prefill prefill-selector redis-pool-max "
      "redis-retention-days redis-url selector service-discovery "
      "service-discovery-namespace service-discovery-port tls-cert-path tls-key-path "
      "worker-urls" },
    { "", ML_FLAG_REFUSED,
      "the routes of the service are fixed; put a proxy with further ones in front of it",
      "multi-lora-http-server-path multi-lora-backend-path" },
    { "", ML_FLAG_NOOP,
      "each adapter trains as soon as its own batch is complete, and nothing polls",
      "multi-lora-idle-poll-s multi-lora-max-coalesce-wait-s "
      "multi-lora-max-empty-wait-s" },
    { "", ML_FLAG_NOOP,
      "requests go to the engines of the run directly, in an order that the results do not "
      "depend on",
      "use-miles-router miles-router-timeout "
      "miles-router-max-connections miles-router-health-check-failure-threshold" },
    { "", ML_FLAG_REFUSED, "vision models are not supported", "multimodal-keys" },
    { "", ML_FLAG_NOOP, "there is one implementation, which is deterministic",
      "attention-softmax-in-fp32 gradient-accumulation-fusion bias-swiglu-fusion "
      "bias-dropout-fusion rope-fusion masked-softmax-fusion use-flash-attn "
      "deterministic-mode batch-invariant-mode moe-grouped-gemm moe-permute-fusion "
      "moe-enable-deepep moe-router-padding-for-quantization use-cpu-initialization "
      "attention-backend transformer-impl moe-token-dispatcher-type "
      "moe-token-drop-policy true-on-policy-contract linear-attention-backend "
      "miles-dsa-topk-backend dsa-attention-backend attn-implementation "
      "moe-flex-dispatcher-backend enable-experimental moe-router-fusion "
      "cross-entropy-loss-fusion cross-entropy-fusion-impl apply-rope-fusion "
      "use-persistent-ckpt-worker moe-deepep-num-sms te-rng-tracker "
      "empty-unused-memory-level megatron-use-deepep" },
    { "", ML_FLAG_NOOP, "indexers get no gradient and are never updated",
      "freeze-indexer" },
    { "", ML_FLAG_NOOP,
      "training adds no load-balancing loss and does not change the router's bias",
      "moe-router-load-balancing-type freeze-e-score-correction-bias" },
    { "", ML_FLAG_NOOP, "the architecture is read from config.json",
      "swiglu disable-bias-linear add-qkv-bias qk-layernorm group-query-attention "
      "untie-embeddings-and-output-weights apply-layernorm-1p "
      "post-self-attn-layernorm post-mlp-layernorm use-rotary-position-embeddings "
      "no-position-embedding rotary-interleaved use-rope-scaling "
      "attention-output-gate multi-latent-attention moe-router-pre-softmax "
      "moe-router-enable-expert-bias moe-shared-expert-gate normalization "
      "position-embedding-type rotary-percent rotary-scaling-factor rope-type "
      "original-max-position-embeddings beta-fast beta-slow mscale mscale-all-dim "
      "activation-func-clamp-value window-size window-attn-skip-freq softmax-type "
      "experimental-attention-variant dsa-indexer-topk dsa-indexer-n-heads "
      "dsa-indexer-head-dim moe-router-score-function moe-router-topk-scaling-factor "
      "moe-layer-freq moe-router-dtype moe-shared-expert-intermediate-size "
      "moe-latent-size make-vocab-size-divisible-by seq-length "
      "max-position-embeddings dsv4-compress-ratios dsv4-compress-rope-theta "
      "dsv4-hc-mult dsv4-hc-sinkhorn-iters dsv4-n-hash-layers dsv4-o-groups "
      "dsv4-o-lora-rank dsv4-window-size activation-func-clamp-shared-expert "
      "rotary-seq-len-interpolation-factor init-method-std" },
    { "", ML_FLAG_NOOP, "Miles does not use it either",
      "rollout-buffer-url fetch-trajectory-retry-times min-batch-collection-ratio "
      "rollout-task-type http-proxy" },
    { "", ML_FLAG_REFUSED, "use miles inspect RUN --min-reward 1", "log-correct-samples" },
    { "", ML_FLAG_REFUSED,
      "rewards have no categories; miles inspect shows the reward of each sample",
      "log-reward-category" },
    { "", ML_FLAG_NOOP,
      "names have no random suffix, and each metric has its own step axis",
      "disable-wandb-random-suffix wandb-always-use-train-step" },
    { "", ML_FLAG_NOOP,
      "the dashboard reads the files of the run, and does not sample GPUs or engines",
      "dashboard-forward-prometheus dashboard-flush-interval "
      "dashboard-gpu-sample-interval dashboard-sglang-scrape-interval "
      "dashboard-sglang-scrape-mode dashboard-sglang-metrics" },
    { "", ML_FLAG_REFUSED, "it belongs to Miles' fsdp backend; pass the flags instead",
      "config" },
    { "", ML_FLAG_NOOP, "the chat template marks the assistant's messages",
      "loss-mask-type" },
    { "", ML_FLAG_REFUSED,
      "a resumed run takes its schedule from its flags; pass the original ones",
      "use-checkpoint-opt-param-scheduler" },
    { "", ML_FLAG_REFUSED,
      "a resumed run takes its schedule from its flags; pass the original ones",
      "use-checkpoint-lr-scheduler" },
    { "", ML_FLAG_NOOP, "a resumed run takes its schedule from its flags",
      "override-lr-scheduler" },
    { "", ML_FLAG_NOOP, "checkpoints are in Hugging Face format; no conversion is needed",
      "megatron-to-hf-mode" },
    { "", ML_FLAG_NOOP, "there is no garbage collector", "manual-gc" },
    { "", ML_FLAG_NOOP,
      "there is one copy of the weights and one of the f32 master weights",
      "rematerialize-param-from-master-weight low-memory-resume keep-fp32-master "
      "fsdp-state-dict-cpu-offload fsdp-cpu-offload" },
    { "", ML_FLAG_REFUSED, "gradients are always f32; remove the flag",
      "grad-reduce-in-bf16" },
    { "", ML_FLAG_NOOP, "chunks of the state are copied and updated sequentially",
      "overlap-cpu-optimizer-d2h-h2d" },
    { "", ML_FLAG_REFUSED, "use --fp8-format e4m3 --fp8-recipe blockwise alone",
      "fp8-param-gather reuse-grad-buf-for-mxfp8-param-ag "
      "fp4-format fp4-recipe te-precision-config-file" },
    { "", ML_FLAG_NOOP, "batches are not padded", "data-pad-size-multiplier" },
    { "", ML_FLAG_REFUSED, "it changes the routing for benchmarks; remove the flag",
      "moe-input-jitter-eps moe-router-force-biased moe-router-force-load-balancing" },
    { "", ML_FLAG_NOOP, "Newton-Schulz iterations are computed in f32",
      "muon-fp32-matmul-prec" },
    { "", ML_FLAG_NOOP, "query, key and value matrices are parameters of their own",
      "muon-split-qkv muon-no-split-qkv" },
    { "", ML_FLAG_NOOP, "a rank has the whole matrices that it updates", "muon-tp-mode" },
    { "", ML_FLAG_REFUSED,
      "Miles does not have it either; use --dynamic-sampling-filter-path "
      "check_reward_nonzero_std",
      "filter-zero-reward-samples" },
    { 0 },
};
