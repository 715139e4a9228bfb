# shellcheck shell=bash
# The figures as Markdown: each bound with its ratio, then everything that was seen. Reads $FIGURES; measures nothing. Sourced by compare.

begin_mark='<!-- begin: written by tests/perf/compare -->'
end_mark='<!-- end: written by tests/perf/compare -->'

# write_document FILE: replaces what is between the marks
write_document() {
  local body
  grep -qF "$begin_mark" "$1" && grep -qF "$end_mark" "$1" || { echo "$1 has no marks for the table" >&2; return 1; }
  body=$(table)
  {
    awk -v mark="$begin_mark" '{ print } $0 == mark { exit }' "$1"
    printf '\n%s\n\n' "$body"
    awk -v mark="$end_mark" '$0 == mark { after = 1 } after' "$1"
  } >"$1.new"
  mv "$1.new" "$1"
}

table() {
  local variants
  cat <<MARKDOWN
$(seen run.date), commit $(seen run.commit), on $(seen run.machine); prometheus-adapter $(seen run.adapter), Kubernetes $(seen run.kubernetes),
Prometheus $(seen run.prometheus) with a scrape every $(seen run.scrape).

| what | wva | beside it | ratio or bound | | aim |
|---|---|---|---|---|---|
$(bounds)

MARKDOWN
  for variants in $(sizes); do
    details "$variants"
  done
}

sizes() { sed -n 's/^\([0-9]*\)\.quiet\.seconds .*/\1/p' "$FIGURES"; }

# grouped NUMBER: 10000 as 10,000
grouped() { sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta' <<<"$1"; }

# short NUMBER: as people read it, three digits that count
short() { grouped "$(awk -v x="$1" 'BEGIN { if (x >= 100) printf "%.0f", x; else if (x >= 10) printf "%.1f", x; else if (x >= 1) printf "%.2f", x; else printf "%.3f", x }')"; }

mark() { if awk "BEGIN { exit !($1) }"; then echo ✓; else echo ✗; fi; }

# row CELL...: six of them
row() { echo "| $1 | $2 | $3 | $4 | $5 | $6 |"; }

# times_more WHAT OURS THEIRS UNIT BOUND AIM: ours is at least BOUND times theirs
times_more() {
  local ratio
  ratio=$(awk "BEGIN { print $2 / $3 }")
  row "$1" "$(short "$2")$4" "$(short "$3")$4" "$(short "$ratio")×, at least $5×" "$(mark "$ratio >= $5")" "$6"
}

# times_less WHAT OURS THEIRS UNIT BOUND AIM: theirs is at least BOUND times ours
times_less() {
  local ratio
  ratio=$(awk "BEGIN { print $3 / $2 }")
  row "$1" "$(short "$2")$4" "$(short "$3")$4" "1/$(short "$ratio"), at most 1/$5" "$(mark "$ratio >= $5")" "$6"
}

# within WHAT OURS THEIRS UNIT BOUND AIM: ours is at most BOUND times theirs
within() {
  local ratio
  ratio=$(awk "BEGIN { print $2 / $3 }")
  row "$1" "$(short "$2")$4" "$(short "$3")$4" "$(short "$ratio")×, at most $5×" "$(mark "$ratio <= $5")" "$6"
}

# at_most WHAT OURS BESIDE UNIT BOUND AIM
at_most() { row "$1" "$(short "$2")$4" "$3" "at most $5$4" "$(mark "$2 <= $5")" "$6"; }

bounds() {
  local n first last
  read -r first _ < <(sizes | tr '\n' ' ')
  last=$(sizes | tail -n 1)
  n="$(grouped "$first") variants"
  times_more "answers/s, 64 connections, $n, against the adapter" "$(seen "$first.wva.c64.per_second")" "$(seen "$first.adapter.c64.per_second")" "" 12 20×
  times_more "the same against the stub" "$(seen "$first.wva.c64.per_second")" "$(seen "$first.stub.c64.per_second")" "" 0.6 ""
  local variants connections percentile
  for variants in $(sizes); do
    n="$(grouped "$variants") variants"
    for connections in 64 1; do
      times_less "p99, $connections connection$([ $connections = 1 ] || echo s), $n, against the adapter" \
        "$(seen "$variants.wva.c$connections.p99_ms")" "$(seen "$variants.adapter.c$connections.p99_ms")" " ms" 10 1/20
    done
    times_less "CPU an answer, 64 connections, $n, with Prometheus's share and all evaluations, against the adapter" \
      "$(cpu_us "$variants" wva)" "$(cpu_us "$variants" adapter)" " µs" 15 1/40
    for percentile in p50 p99; do
      within "$percentile through the API server, 16 connections, $n, against the stub behind it" \
        "$(middle "$variants" aggregated-wva "$percentile")" "$(middle "$variants" aggregated-stub "$percentile")" " ms" 1.2 1.05×
    done
  done
  if [ "$last" -ge 10000 ]; then
    times_less "one list of $(grouped "$last") items, median, against the adapter" "$(seen "$last.wva.list.p50_ms")" "$(seen "$last.adapter.list.p50_ms")" " ms" 20 1/50
  fi
  within "resident memory, $(grouped "$first") variants, against the adapter" "$(seen "$first.wva.rss.steady_mib")" "$(seen "$first.adapter.rss.steady_mib")" " MiB" 1 ""
  if [ "$last" -ge 10000 ]; then
    n="$(grouped "$last") variants and $(grouped $((last * 2))) pods"
    at_most "resident memory, $n, steady" "$(seen "$last.wva.rss.steady_mib")" "adapter $(short "$(seen "$last.adapter.rss.steady_mib")") MiB" " MiB" 192 "the adapter's"
    at_most "resident memory, $n, during an evaluation" "$(seen "$last.wva.rss.most_mib")" "adapter $(short "$(seen "$last.adapter.rss.most_mib")") MiB" " MiB" 320 "the adapter's"
    at_most "age of the evidence in the answer, $n, above the scrape's own, p99" "$(seen "$last.age.above_p99_s")" "answer $(short "$(seen "$last.age.evidence_p99_s")") s, scrape $(short "$(seen "$last.age.scrape_p99_s")") s" " s" 8 "3 s"
  fi
  decide_bounds
}

decide_bounds() {
  at_most "deciding 10,000 variants (criterion, median)" "$(seen decide.10000_ms)" "" " ms" 50 "20 ms"
  # Linear: a variant costs at most twice as much among 100,000, which no cache holds, as among 100.
  local few many
  few=$(awk "BEGIN { print $(seen decide.100_ms) * 1e6 / 100 }")
  many=$(awk "BEGIN { print $(seen decide.100000_ms) * 1e6 / 100000 }")
  within "deciding one variant among 100,000, against among 100" "$many" "$few" " ns" 2 ""
}

# cpu_us VARIANTS SERVER: processor time an answer at 64 connections, in µs: the server's own and what Prometheus does for it. Ours is
# all that Prometheus does above scraping the pods; the adapter's all that it does above what it did while nobody asked, so the
# evaluations of wva, which the adapter also lives on, are not on its bill.
cpu_us() {
  local key=$1.$2.c64 idle=$1.quiet
  [ "$2" != wva ] || idle=$1.series_only
  awk -v own="$(seen "$key.$2_ms")" -v prometheus="$(seen "$key.prometheus_ms")" -v seconds="$(seen "$key.seconds")" -v answers="$(seen "$key.answers")" \
    -v idle="$(seen "$idle.prometheus_ms")" -v idle_seconds="$(seen "$idle.seconds")" 'BEGIN {
      share = prometheus - idle / idle_seconds * seconds
      print (own + (share > 0 ? share : 0)) * 1000 / answers
    }'
}

# middle VARIANTS SERVER PERCENTILE: the median over the rounds through the API server
middle() {
  awk -v prefix="$1.$2.r" -v field=".$3_ms" 'index($1, prefix) == 1 && substr($1, length($1) - length(field) + 1) == field { print $2 }' "$FIGURES" |
    sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

# details VARIANTS: everything at one size
details() {
  local variants=$1 server connections key
  cat <<MARKDOWN
### $(grouped "$variants") variants, $(grouped $((variants * 2))) pods

| server | connections | answers/s | p50 ms | p99 ms | p99.9 ms | bytes |
|---|---|---|---|---|---|---|
$(for connections in 1 16 64; do
    for server in adapter wva stub; do
      key=$variants.$server.c$connections
      echo "| $server | $connections | $(short "$(seen "$key.per_second")") | $(short "$(seen "$key.p50_ms")") | $(short "$(seen "$key.p99_ms")") | $(short "$(seen "$key.p999_ms")") | $(seen "$key.bytes") |"
    done
  done
  for server in wva stub; do
    echo "| $server, through the API server | 16 | | $(short "$(middle "$variants" aggregated-$server p50)") | $(short "$(middle "$variants" aggregated-$server p99)") | | |"
  done)

Everything in one list: $(for server in adapter wva; do
    key=$variants.$server.list
    echo "$server $(short "$(seen "$key.p50_ms")") ms at the median and $(short "$(seen "$key.p99_ms")") ms at p99 for $(grouped $(($(seen "$key.bytes") / 1024))) KiB;"
  done | tr '\n' ' ' | sed 's/; $/./')
Processor while nobody asks, in ms a second: wva $(a_second "$variants.quiet" wva), adapter $(a_second "$variants.quiet" adapter), Prometheus $(a_second "$variants.quiet" prometheus)
($(a_second "$variants.series_only" prometheus) when it only scrapes the pods), API server $(a_second "$variants.quiet" kube-apiserver). An evaluation takes $(short "$(seen "$variants.evaluation_s")") s.
Resident, steady / at most in a minute / most ever: wva $(memories "$variants" wva) MiB, adapter $(memories "$variants" adapter) MiB.
Evidence in wva's answers: $(seen "$variants.age.evidence_p50_s") s old at the median and $(seen "$variants.age.evidence_p99_s") s at p99, the newest sample in Prometheus $(seen "$variants.age.scrape_p50_s") s and $(seen "$variants.age.scrape_p99_s") s;
above the scrape's own age $(seen "$variants.age.above_p50_s") s at the median, $(seen "$variants.age.above_p99_s") s at p99, $(seen "$variants.age.above_most_s") s at most.

MARKDOWN
}

# a_second KEY PART: ms of processor a second
a_second() { awk "BEGIN { printf \"%.0f\", $(seen "$1.$2_ms") / $(seen "$1.seconds") }"; }

memories() { echo "$(short "$(seen "$1.$2.rss.steady_mib")") / $(short "$(seen "$1.$2.rss.most_mib")") / $(short "$(seen "$1.$2.rss.peak_mib")")"; }
