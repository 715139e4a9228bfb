# shellcheck shell=bash
# (2) One decision, one number: the external metric and `kubectl get va` show the same, and it is what the HPA acts on.

steady_under 1.7

same_number() {
  local external column
  external=$(value) || { echo "$external"; return 1; }
  column=$(va_column)
  echo "kubectl get --raw $external, status.desiredOptimizedAlloc.numReplicas $column"
  [ "$external" = "$column" ]
}
eventually 10 "the external metric and the status of the VariantAutoscaling agree" same_number
throughout 10 "and go on agreeing" same_number

number=$(value)
table=$(kubectl -n llm get va llama)
column=$(awk 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "OPTIMIZED") at = i } NR == 2 { print $at }' <<<"$table")
assert_eq "kubectl get va, column OPTIMIZED" "$column" "$number"
assert_eq "the HPA's desired replicas" "$(of_hpa .status.desiredReplicas)" "$number"
