# shellcheck shell=bash
# Writes the figures as Markdown: each bound with its ratio, then all measurements. It reads the figures of all runs and measures nothing.
# Sourced by compare.

begin_mark='<!-- begin: written by tests/perf/compare -->'
end_mark='<!-- end: written by tests/perf/compare -->'

# write_document FILE [COMMAND]: replaces the text between begin_mark and end_mark by the output of COMMAND
write_document() {
  local body
  grep -qF "$begin_mark" "$1" && grep -qF "$end_mark" "$1" || { echo "$1 has no marks for the table" >&2; return 1; }
  body=$("${2:-table}")
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
Prometheus $(first run.prometheus) with a scrape every $(first run.scrape). Medians of ${#ALL_FIGURES[@]} runs, with minimum and maximum in brackets.

| what | wva | compared with | ratio or bound | | goal |
|---|---|---|---|---|---|
$(bounds)

MARKDOWN
  for variants in $(sizes); do
    details "$variants"
  done
}

sizes() { sed -n 's/^\([0-9]*\)\.quiet\.seconds .*/\1/p' "${ALL_FIGURES[0]}"; }

# first KEY: a figure that is the same in all runs
first() { FIGURES=${ALL_FIGURES[0]} get_figure "$1"; }

# runs COMMAND...: the output of COMMAND for each run, on one line
runs() {
  local FIGURES
  for FIGURES in "${ALL_FIGURES[@]}"; do "$@"; done | tr '\n' ' '
}

# median VALUES: of a list in a single argument
median() { tr ' ' '\n' <<<"$1" | grep . | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

# typical KEY: the median of all runs
typical() { median "$(runs get_figure "$1")"; }

# spread VALUES: minimum and maximum in brackets; nothing if they are equal
spread() {
  local least most
  read -r least most < <(tr ' ' '\n' <<<"$1" | grep . | sort -g | sed -n '1p;$p' | tr '\n' ' ')
  [ "$least" = "$most" ] || echo " ($(short "$least") to $(short "$most"))"
}

# ratios ABOVE BELOW: of two lists, run by run
ratios() { paste <(tr ' ' '\n' <<<"$1" | grep .) <(tr ' ' '\n' <<<"$2" | grep .) | awk '{ printf "%s ", $1 / $2 }'; }

# grouped NUMBER: 10000 as 10,000
grouped() { sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta' <<<"$1"; }

# short NUMBER: three significant digits
short() { grouped "$(awk -v x="$1" 'BEGIN { if (x >= 100) printf "%.0f", x; else if (x >= 10) printf "%.1f", x; else if (x >= 1) printf "%.2f", x; else printf "%.3f", x }')"; }

mark() { if awk "BEGIN { exit !($1) }"; then echo ✓; else echo ✗; fi; }

# row CELL...: six cells
row() { echo "| $1 | $2 | $3 | $4 | $5 | $6 |"; }

# The following functions take lists with one value per run. times_more WHAT OURS THEIRS UNIT BOUND GOAL: ours is at least BOUND times theirs
times_more() {
  local all ratio
  all=$(ratios "$2" "$3")
  ratio=$(median "$all")
  row "$1" "$(short "$(median "$2")")$4" "$(short "$(median "$3")")$4" "$(short "$ratio")×$(spread "$all"), at least $5×" "$(mark "$ratio >= $5")" "$6"
}

# times_less WHAT OURS THEIRS UNIT BOUND GOAL: theirs is at least BOUND times ours
times_less() {
  local all ratio
  all=$(ratios "$3" "$2")
  ratio=$(median "$all")
  row "$1" "$(short "$(median "$2")")$4" "$(short "$(median "$3")")$4" "1/$(short "$ratio")$(spread "$all"), at most 1/$5" "$(mark "$ratio >= $5")" "$6"
}

# within WHAT OURS THEIRS UNIT BOUND GOAL: ours is at most BOUND times theirs
within() {
  local all ratio
  all=$(ratios "$2" "$3")
  ratio=$(median "$all")
  row "$1" "$(short "$(median "$2")")$4" "$(short "$(median "$3")")$4" "$(short "$ratio")×$(spread "$all"), at most $5×" "$(mark "$ratio <= $5")" "$6"
}

# at_most WHAT OURS BESIDE UNIT BOUND GOAL
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
  times_more "answers/s, 64 connections, $n, against the adapter" "$(runs get_figure "$small.wva.c64.per_second")" "$(runs get_figure "$small.adapter.c64.per_second")" "" 12 20×
  times_more "the same against the stub" "$(runs get_figure "$small.wva.c64.per_second")" "$(runs get_figure "$small.stub.c64.per_second")" "" 0.6 ""
  local variants connections percentile
  for variants in $(sizes); do
    n="$(grouped "$variants") variants"
    for connections in 64 1; do
      times_less "p99, $connections connection$([ $connections = 1 ] || echo s), $n, against the adapter" \
        "$(runs get_figure "$variants.wva.c$connections.p99_ms")" "$(runs get_figure "$variants.adapter.c$connections.p99_ms")" " ms" 10 1/20
    done
    times_less "CPU time per answer, 64 connections, $n, with Prometheus's share and all evaluations, against the adapter" \
      "$(runs cpu_us "$variants" wva)" "$(runs cpu_us "$variants" adapter)" " µs" 15 1/40
    for percentile in p50 p99; do
      within "$percentile through the API server, 16 connections, $n, against the stub behind it" \
        "$(runs get_figure "$variants.aggregated-wva.${percentile}_ms")" "$(runs get_figure "$variants.aggregated-stub.${percentile}_ms")" " ms" 1.2 1.05×
    done
  done
  if [ "$last" -ge 10000 ]; then
    times_less "one list of $(grouped "$last") items, median, against the adapter" "$(runs get_figure "$last.wva.list.p50_ms")" "$(runs get_figure "$last.adapter.list.p50_ms")" " ms" 20 1/50
  fi
  within "resident memory, $(grouped "$small") variants, against the adapter" "$(runs get_figure "$small.wva.rss.steady_mib")" "$(runs get_figure "$small.adapter.rss.steady_mib")" " MiB" 1 ""
  if [ "$last" -ge 10000 ]; then
    n="$(grouped "$last") variants and $(grouped $((last * 2))) pods"
    at_most "resident memory, $n, steady" "$(runs get_figure "$last.wva.rss.steady_mib")" "adapter $(short "$(typical "$last.adapter.rss.steady_mib")") MiB" " MiB" 192 "the adapter's"
    at_most "resident memory, $n, during an evaluation" "$(runs get_figure "$last.wva.rss.most_mib")" "adapter $(short "$(typical "$last.adapter.rss.most_mib")") MiB" " MiB" 320 "the adapter's"
    at_most "age of the evidence in the answer, $n, above the scrape's own, p99" "$(runs get_figure "$last.age.above_p99_s")" "answer $(short "$(typical "$last.age.evidence_p99_s")") s, scrape $(short "$(typical "$last.age.scrape_p99_s")") s" " s" 8 "3 s"
  fi
  decide_bounds
}

decide_bounds() {
  at_most "deciding 10,000 variants (criterion, median)" "$(runs get_figure decide.10000_ms)" "" " ms" 50 "20 ms"
  # Linear: a variant costs at most twice as much among 100,000, which fit no cache, as among 100.
  within "deciding one variant among 100,000, against among 100" "$(runs ns_each 100000)" "$(runs ns_each 100)" " ns" 2 ""
}
ns_each() { awk -v ms="$(get_figure "decide.$1_ms")" -v variants="$1" 'BEGIN { print ms * 1e6 / variants }'; }

# cpu_us VARIANTS SERVER: CPU time per answer at 64 connections in µs: the server's own, and Prometheus's share. wva is charged with
# everything that Prometheus does above scraping the pods. The adapter is charged with what Prometheus does above the phase without reads, so it
# is not charged with the evaluations of wva, on which it depends.
cpu_us() {
  local key=$1.$2.c64 idle=$1.quiet
  [ "$2" != wva ] || idle=$1.series_only
  awk -v own="$(get_figure "$key.$2_ms")" -v prometheus="$(get_figure "$key.prometheus_ms")" -v seconds="$(get_figure "$key.seconds")" -v answers="$(get_figure "$key.answers")" \
    -v idle="$(get_figure "$idle.prometheus_ms")" -v idle_seconds="$(get_figure "$idle.seconds")" 'BEGIN {
      share = prometheus - idle / idle_seconds * seconds
      print (own + (share > 0 ? share : 0)) * 1000 / answers
    }'
}

# details VARIANTS: all measurements at one size, medians of the runs
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

All variants in one list: $(for server in adapter wva; do
    key=$variants.$server.list
    echo "$server $(short "$(typical "$key.p50_ms")") ms at the median and $(short "$(typical "$key.p99_ms")") ms at p99 for $(grouped $(($(typical "$key.bytes") / 1024))) KiB;"
  done | tr '\n' ' ' | sed 's/; $/./')
CPU time without reads, in ms per second: wva $(a_second "$variants.quiet" wva), adapter $(a_second "$variants.quiet" adapter), Prometheus $(a_second "$variants.quiet" prometheus)
($(a_second "$variants.series_only" prometheus) while it only scrapes the pods), API server $(a_second "$variants.quiet" kube-apiserver). An evaluation takes $(short "$(typical "$variants.evaluation_s")") s.
Resident memory, steady / maximum of one minute / peak: wva $(memories "$variants" wva) MiB, adapter $(memories "$variants" adapter) MiB.
Evidence in wva's answers: $(typical "$variants.age.evidence_p50_s") s old at the median and $(typical "$variants.age.evidence_p99_s") s at p99, the newest sample in Prometheus $(typical "$variants.age.scrape_p50_s") s and $(typical "$variants.age.scrape_p99_s") s;
above the scrape's own age $(typical "$variants.age.above_p50_s") s at the median, $(typical "$variants.age.above_p99_s") s at p99, $(typical "$variants.age.above_most_s") s at maximum.

MARKDOWN
}

# a_second KEY PART: ms of CPU time per second
a_second() { awk "BEGIN { printf \"%.0f\", $(typical "$1.$2_ms") / $(typical "$1.seconds") }"; }

memories() { echo "$(short "$(typical "$1.$2.rss.steady_mib")") / $(short "$(typical "$1.$2.rss.most_mib")") / $(short "$(typical "$1.$2.rss.peak_mib")")"; }
