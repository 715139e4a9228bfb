# shellcheck shell=bash
# (2) One decision, one number: the external metric and `kubectl get va` show the same number, and the HPA follows it.

hold_at 2

same_number() {
  local external column
  external=$(value) || { echo "$external"; return 1; }
  column=$(va_column)
  echo "kubectl get --raw $external, status.desiredOptimizedAlloc.numReplicas $column"
  [ "$external" = "$column" ]
}
eventually 10 "the external metric and the status of the VariantAutoscaling agree" same_number
throughout 10 "and keep agreeing" same_number
assert_eq "the HPA's desired replicas" "$(of_hpa .status.desiredReplicas)" 2

allow 3
eventually 60 "maximum raised to 3: the number follows" value_is "==" 3
eventually 10 "both agree again" same_number
table=$(kubectl -n llm get va llama)
assert_eq "kubectl get va, column OPTIMIZED" \
  "$(awk 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "OPTIMIZED") at = i } NR == 2 { print $at }' <<<"$table")" 3
