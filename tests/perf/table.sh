# shellcheck shell=bash
# The figures as Markdown: each bound with its ratio, then everything that was seen. Reads the figures of all runs; measures nothing.
# Sourced by compare.

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
$(first run.date), commit $(first run.commit), on $(first run.machine); prometheus-adapter $(first run.adapter), Kubernetes $(first run.kubernetes),
Prometheus $(first run.prometheus) with a scrape every $(first run.scrape). Medians of ${#ALL_FIGURES[@]} runs; in brackets the least and the most.

| what | wva | beside it | ratio or bound | | aim |
|---|---|---|---|---|---|
$(bounds)

MARKDOWN
  for variants in $(sizes); do
    details "$variants"
  done
}

sizes() { sed -n 's/^\([0-9]*\)\.quiet\.seconds .*/\1/p' "${ALL_FIGURES[0]}"; }

# first KEY: what is the same in all runs
first() { FIGURES=${ALL_FIGURES[0]} seen "$1"; }

# runs COMMAND...: what COMMAND prints of each run, on one line
runs() {
  local FIGURES
  for FIGURES in "${ALL_FIGURES[@]}"; do "$@"; done | tr '\n' ' '
}

# median VALUES: of a list in one word
median() { tr ' ' '\n' <<<"$1" | grep . | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

# typical KEY: the median of all runs
typical() { median "$(runs seen "$1")"; }

# spread VALUES: the least and the most, in brackets; nothing where there is one
spread() {
  local least most
  read -r least most < <(tr ' ' '\n' <<<"$1" | grep . | sort -g | sed -n '1p;$p' | tr '\n' ' ')
  [ "$least" = "$most" ] || echo " ($(short "$least") to $(short "$most"))"
}

# ratios ABOVE BELOW: of two lists, run by run
ratios() { paste <(tr ' ' '\n' <<<"$1" | grep .) <(tr ' ' '\n' <<<"$2" | grep .) | awk '{ printf "%s ", $1 / $2 }'; }

# grouped NUMBER: 10000 as 10,000
grouped() { sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta' <<<"$1"; }

# short NUMBER: as people read it, three digits that count
short() { grouped "$(awk -v x="$1" 'BEGIN { if (x >= 100) printf "%.0f", x; else if (x >= 10) printf "%.1f", x; else if (x >= 1) printf "%.2f", x; else printf "%.3f", x }')"; }

mark() { if awk "BEGIN { exit !($1) }"; then echo ✓; else echo ✗; fi; }

# row CELL...: six of them
row() { echo "| $1 | $2 | $3 | $4 | $5 | $6 |"; }

# What follows takes lists, a value a run. times_more WHAT OURS THEIRS UNIT BOUND AIM: ours is at least BOUND times theirs
times_more() {
  local all ratio
  all=$(ratios "$2" "$3")
  ratio=$(median "$all")
  row "$1" "$(short "$(median "$2")")$4" "$(short "$(median "$3")")$4" "$(short "$ratio")×$(spread "$all"), at least $5×" "$(mark "$ratio >= $5")" "$6"
}

# times_less WHAT OURS THEIRS UNIT BOUND AIM: theirs is at least BOUND times ours
times_less() {
  local all ratio
  all=$(ratios "$3" "$2")
  ratio=$(median "$all")
  row "$1" "$(short "$(median "$2")")$4" "$(short "$(median "$3")")$4" "1/$(short "$ratio")$(spread "$all"), at most 1/$5" "$(mark "$ratio >= $5")" "$6"
}

# within WHAT OURS THEIRS UNIT BOUND AIM: ours is at most BOUND times theirs
within() {
  local all ratio
  all=$(ratios "$2" "$3")
  ratio=$(median "$all")
  row "$1" "$(short "$(median "$2")")$4" "$(short "$(median "$3")")$4" "$(short "$ratio")×$(spread "$all"), at most $5×" "$(mark "$ratio <= $5")" "$6"
}

# at_most WHAT OURS BESIDE UNIT BOUND AIM
at_most() {
  local ours
  ours=$(median "$2")
  row "$1" "$(short "$ours")$4$(spread "$2")" "$3" "at most $5$4" "$(mark "$ours <= $5")" "$6"
}

bounds() {
  local n small last
  read -r small _ < <(sizes | tr '\n' ' ')
  last=$(sizes | tail -n 1)
  n="$(grouped "$small") variants"
  times_more "answers/s, 64 connections, $n, against the adapter" "$(runs seen "$small.wva.c64.per_second")" "$(runs seen "$small.adapter.c64.per_second")" "" 12 20×
  times_more "the same against the stub" "$(runs seen "$small.wva.c64.per_second")" "$(runs seen "$small.stub.c64.per_second")" "" 0.6 ""
  local variants connections percentile
  for variants in $(sizes); do
    n="$(grouped "$variants") variants"
    for connections in 64 1; do
      times_less "p99, $connections connection$([ $connections = 1 ] || echo s), $n, against the adapter" \
        "$(runs seen "$variants.wva.c$connections.p99_ms")" "$(runs seen "$variants.adapter.c$connections.p99_ms")" " ms" 10 1/20
    done
    times_less "CPU an answer, 64 connections, $n, with Prometheus's share and all evaluations, against the adapter" \
      "$(runs cpu_us "$variants" wva)" "$(runs cpu_us "$variants" adapter)" " µs" 15 1/40
    for percentile in p50 p99; do
      within "$percentile through the API server, 16 connections, $n, against the stub behind it" \
        "$(runs seen "$variants.aggregated-wva.${percentile}_ms")" "$(runs seen "$variants.aggregated-stub.${percentile}_ms")" " ms" 1.2 1.05×
    done
  done
  if [ "$last" -ge 10000 ]; then
    times_less "one list of $(grouped "$last") items, median, against the adapter" "$(runs seen "$last.wva.list.p50_ms")" "$(runs seen "$last.adapter.list.p50_ms")" " ms" 20 1/50
  fi
  within "resident memory, $(grouped "$small") variants, against the adapter" "$(runs seen "$small.wva.rss.steady_mib")" "$(runs seen "$small.adapter.rss.steady_mib")" " MiB" 1 ""
  if [ "$last" -ge 10000 ]; then
    n="$(grouped "$last") variants and $(grouped $((last * 2))) pods"
    at_most "resident memory, $n, steady" "$(runs seen "$last.wva.rss.steady_mib")" "adapter $(short "$(typical "$last.adapter.rss.steady_mib")") MiB" " MiB" 192 "the adapter's"
    at_most "resident memory, $n, during an evaluation" "$(runs seen "$last.wva.rss.most_mib")" "adapter $(short "$(typical "$last.adapter.rss.most_mib")") MiB" " MiB" 320 "the adapter's"
    at_most "age of the evidence in the answer, $n, above the scrape's own, p99" "$(runs seen "$last.age.above_p99_s")" "answer $(short "$(typical "$last.age.evidence_p99_s")") s, scrape $(short "$(typical "$last.age.scrape_p99_s")") s" " s" 8 "3 s"
  fi
  decide_bounds
}

decide_bounds() {
  at_most "deciding 10,000 variants (criterion, median)" "$(runs seen decide.10000_ms)" "" " ms" 50 "20 ms"
  # Linear: a variant costs at most twice as much among 100,000, which no cache holds, as among 100.
  within "deciding one variant among 100,000, against among 100" "$(runs ns_each 100000)" "$(runs ns_each 100)" " ns" 2 ""
}
ns_each() { awk -v ms="$(seen "decide.$1_ms")" -v variants="$1" 'BEGIN { print ms * 1e6 / variants }'; }

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

# details VARIANTS: everything at one size, medians of the runs
details() {
  local variants=$1 server connections key
  cat <<MARKDOWN
### $(grouped "$variants") variants, $(grouped $((variants * 2))) pods

| server | connections | answers/s | p50 ms | p99 ms | p99.9 ms | bytes |
|---|---|---|---|---|---|---|
$(for connections in 1 16 64; do
    for server in adapter wva stub; do
      key=$variants.$server.c$connections
      echo "| $server | $connections | $(short "$(typical "$key.per_second")") | $(short "$(typical "$key.p50_ms")") | $(short "$(typical "$key.p99_ms")") | $(short "$(typical "$key.p999_ms")") | $(typical "$key.bytes") |"
    done
  done
  for server in wva stub; do
    echo "| $server, through the API server | 16 | | $(short "$(typical "$variants.aggregated-$server.p50_ms")") | $(short "$(typical "$variants.aggregated-$server.p99_ms")") | | |"
  done)

Everything in one list: $(for server in adapter wva; do
    key=$variants.$server.list
    echo "$server $(short "$(typical "$key.p50_ms")") ms at the median and $(short "$(typical "$key.p99_ms")") ms at p99 for $(grouped $(($(typical "$key.bytes") / 1024))) KiB;"
  done | tr '\n' ' ' | sed 's/; $/./')
Processor while nobody asks, in ms a second: wva $(a_second "$variants.quiet" wva), adapter $(a_second "$variants.quiet" adapter), Prometheus $(a_second "$variants.quiet" prometheus)
($(a_second "$variants.series_only" prometheus) when it only scrapes the pods), API server $(a_second "$variants.quiet" kube-apiserver). An evaluation takes $(short "$(typical "$variants.evaluation_s")") s.
Resident, steady / at most in a minute / most ever: wva $(memories "$variants" wva) MiB, adapter $(memories "$variants" adapter) MiB.
Evidence in wva's answers: $(typical "$variants.age.evidence_p50_s") s old at the median and $(typical "$variants.age.evidence_p99_s") s at p99, the newest sample in Prometheus $(typical "$variants.age.scrape_p50_s") s and $(typical "$variants.age.scrape_p99_s") s;
above the scrape's own age $(typical "$variants.age.above_p50_s") s at the median, $(typical "$variants.age.above_p99_s") s at p99, $(typical "$variants.age.above_most_s") s at most.

MARKDOWN
}

# a_second KEY PART: ms of processor a second
a_second() { awk "BEGIN { printf \"%.0f\", $(typical "$1.$2_ms") / $(typical "$1.seconds") }"; }

memories() { echo "$(short "$(typical "$1.$2.rss.steady_mib")") / $(short "$(typical "$1.$2.rss.most_mib")") / $(short "$(typical "$1.$2.rss.peak_mib")")"; }
