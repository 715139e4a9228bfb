package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"k8s.io/metrics/pkg/client/external_metrics"
	"sigs.k8s.io/yaml"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
)

// What `kubectl get` sends.
const kubectlAccept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"

var acceptChecks = []Check{
	{
		ID: "accept/hpa", Level: must,
		Promise: "the HPA's `" + hpaAccept + "` gets the value in protobuf or JSON, with the matching Content-Type",
		Why:     "the client decodes by the Content-Type of the answer, and fails for text/plain or none",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, accept(hpaAccept))
			if err != nil {
				return "", err
			}
			if answer.contentType() == protobufType {
				return nonEmpty(answer.protobufList())
			}
			return nonEmpty(answer.list())
		},
	},
	{
		ID: "accept/json", Level: must,
		Promise: "application/json, */* and a missing Accept header get the value in JSON",
		Why:     "curl, kubectl --raw and clients in other languages",
		Run: func(e *Env) (string, error) {
			ways := []string{"application/json", "*/*", "application/json, */*", ""}
			return "JSON to all", forEach(ways, func(types string) error {
				answer, err := e.data(e.selector, headerIf("Accept", types))
				if err == nil {
					_, err = nonEmpty(answer.list())
				}
				return inCase(types, err)
			})
		},
	},
	{
		ID: "accept/weighted", Level: should,
		Promise: "q values, spaces, `application/*` and leading unknown types are accepted",
		Why:     "HTTP libraries and browsers send them",
		Run: func(e *Env) (string, error) {
			ways := []string{"application/json;q=0.5", "application/xml, application/json;q=0.9", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", " application/json ; q=1 , text/plain"}
			return "200 to all", forEach(ways, func(types string) error {
				answer, err := e.data(e.selector, accept(types))
				if err == nil && answer.Code != http.StatusOK {
					err = fmt.Errorf("%s", answer)
				} else if err == nil && answer.contentType() == "application/json" {
					_, err = nonEmpty(answer.list())
				}
				return inCase(types, err)
			})
		},
	},
	{
		ID: "accept/protobuf", Level: should,
		Promise: "application/vnd.kubernetes.protobuf gets protobuf that Kubernetes' decoder reads, with the same series as in JSON",
		Why:     "the HPA prefers it, and it is cheaper in large clusters",
		Run:     (*Env).sameInProtobuf,
	},
	{
		ID: "accept/yaml", Level: should,
		Promise: "application/yaml gets the same data in YAML",
		Why:     "for people; every Kubernetes server supports it",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, accept("application/yaml"))
			if err != nil {
				return "", err
			}
			list := &v1beta1.ExternalMetricValueList{}
			if answer.Code != http.StatusOK || answer.contentType() != "application/yaml" {
				return "", fmt.Errorf("%s", answer)
			}
			if err := yaml.Unmarshal(answer.Body, list); err != nil {
				return "", err
			}
			return nonEmpty(list, isList(list))
		},
	},
	{
		ID: "accept/kubectl", Level: must,
		Promise: "the Accept header of `kubectl get` gets a Table or a list",
		Why:     "kubectl get METRIC.external.metrics.k8s.io",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, accept(kubectlAccept))
			if err != nil {
				return "", err
			}
			if answer.contentType() == "application/json" && isTable(answer) {
				return "a Table", nil
			}
			return nonEmpty(answer.list())
		},
	},
	{
		ID: "accept/table", Level: should,
		Promise: "the Accept header of `kubectl get` gets a Table with one row per item and as many cells as columns",
		Why:     "kubectl get then shows the number; otherwise it shows a name that does not exist",
		Run:     (*Env).table,
	},
	{
		ID: "accept/unknown", Level: should,
		Promise: "an unsupported type gets 406 NotAcceptable",
		Why:     "a client that reads no other type must get an error",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, accept("application/xml"))
			if err != nil {
				return "", err
			}
			return answer.refused(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable)
		},
	},
	{
		ID: "accept/error", Level: must,
		Promise: "the HPA's client, set to protobuf, reads the message of an error",
		Why:     "the HPA copies it into its condition and event, which is all that the user sees",
		Run: func(e *Env) (string, error) {
			config := rest.CopyConfig(e.config)
			config.ContentType = protobufType
			client, err := external_metrics.NewForConfig(config)
			if err != nil {
				return "", err
			}
			list, err := client.NamespacedMetrics(e.namespace).List("conformance-no-such-metric", labels.Everything())
			switch status := apierrors.APIStatus(nil); {
			case err == nil && len(list.Items) == 0:
				return "", skip("an unknown metric is an empty list here: no error to read")
			case err == nil:
				return "", fmt.Errorf("an unknown metric has %d items", len(list.Items))
			case asStatus(err, &status) && status.Status().Message != "" && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
				return fmt.Sprintf("%s: %s", status.Status().Reason, oneLine(err.Error(), 150)), nil
			}
			return "", fmt.Errorf("the client returned: %w", err)
		},
	},
}

// headerIf sets a header unless the value is empty.
func headerIf(name, value string) requestOption {
	return func(a *rawRequest) {
		if value != "" {
			a.header.Set(name, value)
		}
	}
}

// inCase adds the name of the failing case to an error.
func inCase(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%q: %w", name, err)
}

func nonEmpty(list *v1beta1.ExternalMetricValueList, err error) (string, error) {
	if err != nil {
		return "", err
	}
	if len(list.Items) == 0 {
		return "", fmt.Errorf("no items")
	}
	return fmt.Sprintf("%d items, the first %s", len(list.Items), list.Items[0].Value.String()), nil
}

func asStatus(err error, status *apierrors.APIStatus) bool {
	found, ok := err.(apierrors.APIStatus)
	*status = found
	return ok
}

func (e *Env) sameInProtobuf() (string, error) {
	answer, err := e.data(e.selector, accept(protobufType))
	if err != nil {
		return "", err
	}
	list, err := answer.protobufList()
	if err != nil {
		return "", err
	}
	plain, err := e.value()
	if err != nil {
		return "", err
	}
	if len(list.Items) != len(plain.Items) {
		return "", fmt.Errorf("%d items in protobuf, %d in JSON", len(list.Items), len(plain.Items))
	}
	// Values and times may change between the two requests; names and labels may not.
	for i, item := range list.Items {
		same := plain.Items[i]
		if item.MetricName != same.MetricName || labels.Set(item.MetricLabels).String() != labels.Set(same.MetricLabels).String() || item.Timestamp.IsZero() {
			return "", fmt.Errorf("in protobuf %v, in JSON %v", item, same)
		}
	}
	return nonEmpty(list, nil)
}

func isTable(answer *Answer) bool {
	var table metav1.Table
	return json.Unmarshal(answer.Body, &table) == nil && table.Kind == "Table"
}

func (e *Env) table() (string, error) {
	answer, err := e.data(e.selector, accept(kubectlAccept))
	if err != nil {
		return "", err
	}
	var table metav1.Table
	if err := answer.json(&table); err != nil {
		return "", err
	}
	if table.Kind != "Table" || table.APIVersion != "meta.k8s.io/v1" {
		return "", fmt.Errorf("kind %q of %q", table.Kind, table.APIVersion)
	}
	list, err := e.value()
	if err != nil {
		return "", err
	}
	var columns string
	for _, column := range table.ColumnDefinitions {
		columns += " " + column.Name
	}
	for _, row := range table.Rows {
		if len(row.Cells) != len(table.ColumnDefinitions) {
			return "", fmt.Errorf("a row with %d cells under %d columns", len(row.Cells), len(table.ColumnDefinitions))
		}
	}
	if len(table.Rows) != len(list.Items) || len(table.ColumnDefinitions) == 0 {
		return "", fmt.Errorf("%d rows and %d columns for %d items", len(table.Rows), len(table.ColumnDefinitions), len(list.Items))
	}
	return fmt.Sprintf("%d rows of%s", len(table.Rows), columns), nil
}
