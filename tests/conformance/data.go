package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"k8s.io/metrics/pkg/client/external_metrics"
)

// The largest number that MilliValue() reads correctly. Above it, the value wraps to zero or below.
const largest = math.MaxInt64 / 1000

var dataChecks = []Check{
	{
		ID: "data/client-protobuf", Level: must,
		Promise: "the HPA's client (external_metrics of k8s.io/metrics, set to protobuf as in kube-controller-manager) gets the value",
		Why:     "it is the client that scales",
		Run:     func(e *Env) (string, error) { return e.byClient(protobufType) },
	},
	{
		ID: "data/client-json", Level: must,
		Promise: "the same client set to JSON gets the value",
		Why:     "KEDA, tools and tests use it this way",
		Run:     func(e *Env) (string, error) { return e.byClient("application/json") },
	},
	{
		ID: "data/shape", Level: must,
		Promise: "the answer is an ExternalMetricValueList of the requested version, and its items have metricName, metricLabels, timestamp and value",
		Why:     "these fields are required by the API; clients in other languages decode strictly",
		Run:     (*Env).shape,
	},
	{
		ID: "data/one-item", Level: should,
		Promise: "a selector for one series returns one item",
		Why:     "the HPA adds items up, so a second one doubles the number",
		Run: func(e *Env) (string, error) {
			list, err := e.value()
			if err == nil && len(list.Items) != 1 {
				err = fmt.Errorf("%d items for %q", len(list.Items), e.selector)
			}
			return "1 item", err
		},
	},
	{
		ID: "data/several-items", Level: must, Needs: []need{several},
		Promise: "a selector that several series match returns one item per series, with different labels",
		Why:     "the HPA's sum is right only if each series is in it once",
		Run:     (*Env).severalItems,
	},
	{
		ID: "data/no-selector", Level: must,
		Promise: "without labelSelector, and with an empty one, the answer is a list or a Status",
		Why:     "an HPA without a selector sends none",
		Run: func(e *Env) (string, error) {
			observed := ""
			err := forEach([]string{"", "?labelSelector="}, func(query string) error {
				answer, err := e.get(e.dataPath(e.metric, "")+query, accept(hpaAccept))
				if err == nil {
					observed = fmt.Sprintf("HTTP %d", answer.Code)
					err = answer.listOrStatus()
				}
				return err
			})
			return observed, err
		},
	},
	{
		ID: "data/name", Level: should,
		Promise: "every item's metricName is the requested name",
		Why:     "people and tools that read several metrics distinguish them by it",
		Run: func(e *Env) (string, error) {
			return e.everyItem(func(item v1beta1.ExternalMetricValue) (string, error) {
				return item.MetricName, errorUnless(item.MetricName == e.metric, "metricName %q", item.MetricName)
			})
		},
	},
	{
		ID: "data/labels", Level: should,
		Promise: "every item's metricLabels satisfy the selector",
		Why:     "they are the only way to see which series was read",
		Run: func(e *Env) (string, error) {
			selector, err := labels.Parse(e.selector)
			if err != nil {
				return "", err
			}
			return e.everyItem(func(item v1beta1.ExternalMetricValue) (string, error) {
				observed := labels.Set(item.MetricLabels).String()
				return observed, errorUnless(selector.Matches(labels.Set(item.MetricLabels)), "%q does not select {%s}", e.selector, observed)
			})
		},
	},
	{
		ID: "data/quantity", Level: must,
		Promise: "every value is a string that Kubernetes parses, is not negative, and is at most 9223372036854775",
		Why:     "an HPA treats a negative number as an overflow and scales to the maximum; a larger number wraps to zero or below",
		Run: func(e *Env) (string, error) {
			return e.everyQuantity(func(text string, quantity resource.Quantity) error {
				limit := resource.NewQuantity(largest, resource.DecimalSI)
				return errorUnless(quantity.Sign() >= 0 && quantity.Cmp(*limit) <= 0, "%s", text)
			})
		},
	},
	{
		ID: "data/quantity-canonical", Level: should,
		Promise: "every value is written as Kubernetes would write it",
		Why:     "text comparisons then agree with decoded and re-encoded values",
		Run: func(e *Env) (string, error) {
			return e.everyQuantity(func(text string, quantity resource.Quantity) error {
				// A Quantity keeps the text that it was parsed from; adding it to zero drops the text.
				fresh := resource.NewQuantity(0, quantity.Format)
				fresh.Add(quantity)
				return errorUnless(fresh.String() == text, "%q, canonical is %q", text, fresh.String())
			})
		},
	},
	{
		ID: "data/timestamp", Level: must,
		Promise: "every timestamp is RFC 3339",
		Why:     "the client cannot decode other formats",
		Run: func(e *Env) (string, error) {
			return e.everyItem(func(item v1beta1.ExternalMetricValue) (string, error) {
				return item.Timestamp.UTC().Format(time.RFC3339), errorUnless(!item.Timestamp.IsZero(), "no timestamp")
			})
		},
	},
	{
		ID: "data/timestamp-recent", Level: should,
		Promise: "every timestamp is within the last hour and not in the future",
		Why:     "the HPA does not check it, and uses a number from yesterday as a current one",
		Run: func(e *Env) (string, error) {
			return e.everyItem(func(item v1beta1.ExternalMetricValue) (string, error) {
				age := time.Since(item.Timestamp.Time).Round(time.Second)
				return fmt.Sprintf("%s old", age), errorUnless(age > -5*time.Second && age < time.Hour, "%s old", age)
			})
		},
	},
	{
		ID: "data/list-options", Level: must,
		Promise: "limit, resourceVersion, timeoutSeconds, pretty and unknown parameters change nothing",
		Why:     "kubectl sends limit=500 with every get",
		Run: func(e *Env) (string, error) {
			options := []string{"limit=500", "resourceVersion=0", "timeoutSeconds=30", "pretty=true", "watch=false", "conformance=x"}
			return strings.Join(options, ", "), forEach(options, func(option string) error {
				answer, err := e.get(with(e.dataPath(e.metric, e.selector), option))
				if err == nil {
					_, err = answer.list()
				}
				if err != nil {
					err = fmt.Errorf("%s: %w", option, err)
				}
				return err
			})
		},
	},
	{
		ID: "data/other-namespace", Level: should,
		Promise: "a namespace that does not exist returns an empty list or a 404 Status, not another namespace's series",
		Why:     "an HPA must never scale on another tenant's number",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(strings.Replace(e.dataPath(e.metric, e.selector), "/namespaces/"+e.namespace+"/", "/namespaces/conformance-no-such-namespace/", 1))
			if err != nil {
				return "", err
			}
			return answer.emptyOrNotFound()
		},
	},
}

func errorUnless(ok bool, format string, arguments ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, arguments...)
}

// byClient reads with the real client and this content type.
func (e *Env) byClient(contentType string) (string, error) {
	config := rest.CopyConfig(e.config)
	config.ContentType = contentType
	client, err := external_metrics.NewForConfig(config)
	if err != nil {
		return "", err
	}
	selector, err := labels.Parse(e.selector)
	if err != nil {
		return "", err
	}
	list, err := client.NamespacedMetrics(e.namespace).List(e.metric, selector)
	if err != nil {
		return "", err
	}
	if len(list.Items) == 0 {
		return "", fmt.Errorf("no metrics returned from external metrics API")
	}
	return fmt.Sprintf("%d items, the first %s of %s", len(list.Items), list.Items[0].Value.String(), list.Items[0].Timestamp.UTC().Format(time.TimeOnly)), nil
}

func (e *Env) shape() (string, error) {
	if _, err := e.value(); err != nil {
		return "", err
	}
	answer, err := e.data(e.selector, accept("application/json"))
	if err != nil {
		return "", err
	}
	var raw struct {
		Metadata *map[string]any              `json:"metadata"`
		Items    []map[string]json.RawMessage `json:"items"`
	}
	if err := answer.json(&raw); err != nil {
		return "", err
	}
	if raw.Metadata == nil {
		return "", fmt.Errorf("no metadata: %s", answer)
	}
	return oneLine(string(answer.Body), 250), forEach(raw.Items, func(item map[string]json.RawMessage) error {
		for _, field := range []string{"metricName", "metricLabels", "timestamp", "value"} {
			if _, found := item[field]; !found {
				return fmt.Errorf("an item without %s: %s", field, answer)
			}
		}
		return nil
	})
}

func (e *Env) severalItems() (string, error) {
	answer, err := e.data(e.multiSelector)
	if err != nil {
		return "", err
	}
	list, err := answer.list()
	if err != nil {
		return "", err
	}
	if len(list.Items) < 2 {
		return "", fmt.Errorf("%d items for %q", len(list.Items), e.multiSelector)
	}
	observed := map[string]bool{}
	for _, item := range list.Items {
		series := labels.Set(item.MetricLabels).String()
		if observed[series] {
			return "", fmt.Errorf("two items are labelled {%s}", series)
		}
		observed[series] = true
	}
	return fmt.Sprintf("%d items", len(list.Items)), nil
}

func (e *Env) everyItem(inspect func(v1beta1.ExternalMetricValue) (string, error)) (string, error) {
	list, err := e.value()
	if err != nil {
		return "", err
	}
	observed := ""
	err = forEach(list.Items, func(item v1beta1.ExternalMetricValue) (wrong error) {
		observed, wrong = inspect(item)
		return wrong
	})
	return observed, err
}

// everyQuantity inspects values as written in the JSON.
func (e *Env) everyQuantity(inspect func(string, resource.Quantity) error) (string, error) {
	answer, err := e.data(e.selector)
	if err != nil {
		return "", err
	}
	var raw struct {
		Items []struct {
			Value any `json:"value"`
		} `json:"items"`
	}
	if err := answer.json(&raw); err != nil {
		return "", err
	}
	if len(raw.Items) == 0 {
		return "", fmt.Errorf("no items: %s", answer)
	}
	var observed []string
	for _, item := range raw.Items {
		text, isText := item.Value.(string)
		if !isText {
			return "", fmt.Errorf("value %v is no string", item.Value)
		}
		quantity, err := resource.ParseQuantity(text)
		if err == nil {
			err = inspect(text, quantity)
		}
		if err != nil {
			return "", err
		}
		observed = append(observed, text)
	}
	return strings.Join(observed, ", "), nil
}

// listOrStatus accepts a list and a Status in any representation that the HPA accepts.
func (a *Answer) listOrStatus() error {
	var err error
	switch {
	case a.Code != 200 && a.contentType() == protobufType:
		var status *metav1.Status
		if status, err = decodeProtobuf[*metav1.Status](a); err == nil {
			err = a.isFailure(status)
		}
	case a.Code != 200:
		_, err = a.status()
	case a.contentType() == protobufType:
		_, err = a.protobufList()
	default:
		_, err = a.list()
	}
	return err
}

// noItems accepts an empty list and any error as a Status.
func (a *Answer) noItems() (string, error) {
	if a.Code == 200 {
		return a.emptyOrNotFound()
	}
	status, err := a.status()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d %s: %s", a.Code, status.Reason, oneLine(status.Message, 120)), nil
}

// emptyOrNotFound accepts the two ways to say that there is no such series: an empty list, or a 404 Status.
func (a *Answer) emptyOrNotFound() (string, error) {
	if a.Code == 404 {
		status, err := a.status()
		if err != nil {
			return "", err
		}
		return "404 " + string(status.Reason) + ": " + oneLine(status.Message, 120), nil
	}
	list, err := a.list()
	if err != nil {
		return "", fmt.Errorf("expected an empty list or a 404 Status: %w", err)
	}
	if len(list.Items) > 0 {
		return "", fmt.Errorf("%d items: %s", len(list.Items), a)
	}
	return "200 with no items", nil
}
