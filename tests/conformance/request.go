package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	customv1beta1 "k8s.io/metrics/pkg/apis/custom_metrics/v1beta1"
	customv1beta2 "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	resourcemetrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

const (
	externalGroup   = "external.metrics.k8s.io"
	externalVersion = "v1beta1"
	externalPath    = "/apis/" + externalGroup + "/" + externalVersion
	// What the HPA controller sends.
	hpaAccept    = "application/vnd.kubernetes.protobuf, */*"
	protobufType = "application/vnd.kubernetes.protobuf"
)

var externalGV = schema.GroupVersion{Group: externalGroup, Version: externalVersion}

// rawRequest is one request; options change it.
type rawRequest struct {
	method, path string
	header       http.Header
	body         io.Reader
	host         string
	who          identity
	client       *http.Client
}

type requestOption func(*rawRequest)

func accept(types string) requestOption { return header("Accept", types) }

func header(name, value string) requestOption {
	return func(a *rawRequest) { a.header.Add(name, value) }
}

func asIdentity(who identity) requestOption { return func(a *rawRequest) { a.who = who } }

func withClient(client *http.Client) requestOption { return func(a *rawRequest) { a.client = client } }

func method(name string) requestOption { return func(a *rawRequest) { a.method = name } }

func withBody(text string) requestOption {
	return func(a *rawRequest) {
		a.body = strings.NewReader(text)
		a.header.Set("Content-Type", "application/json")
	}
}

// Answer is a complete response.
type Answer struct {
	Code   int
	Header http.Header
	Body   []byte
	Proto  string
}

// get sends one request: by default a GET with the default identity and without compression.
func (e *Env) get(path string, options ...requestOption) (*Answer, error) {
	a := rawRequest{method: http.MethodGet, path: path, header: http.Header{}, who: e.who, client: e.client}
	for _, option := range options {
		option(&a)
	}
	request, err := http.NewRequest(a.method, e.base+a.path, a.body)
	if err != nil {
		return nil, err
	}
	request.Header = a.header
	if request.Header.Get("Accept-Encoding") == "" {
		request.Header.Set("Accept-Encoding", "identity")
	}
	if e.direct {
		a.who.addHeaders(request.Header)
	}
	request.Host = a.host
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: HTTP %d, then the body was truncated: %w", a.method, short(a.path), response.StatusCode, err)
	}
	return &Answer{response.StatusCode, response.Header, body, response.Proto}, nil
}

// data reads the metric under test as an HPA would.
func (e *Env) data(selector string, options ...requestOption) (*Answer, error) {
	return e.get(e.dataPath(e.metric, selector), options...)
}

func (e *Env) dataPath(metric, selector string) string {
	path := externalPath + "/namespaces/" + e.namespace + "/" + url.PathEscape(metric)
	if selector != "" {
		path += "?labelSelector=" + url.QueryEscape(selector)
	}
	return path
}

// value returns the list for the selector under test, or why there is none.
func (e *Env) value() (*v1beta1.ExternalMetricValueList, error) {
	answer, err := e.data(e.selector)
	if err != nil {
		return nil, err
	}
	list, err := answer.list()
	if err == nil && len(list.Items) == 0 {
		err = fmt.Errorf("the list is empty; --metric and --selector must name a series that has a value")
	}
	return list, err
}

func (a *Answer) contentType() string {
	kind, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if err != nil {
		return a.Header.Get("Content-Type")
	}
	return kind
}

// json reads a 200 of the content type application/json.
func (a *Answer) json(into any) error {
	if a.Code != http.StatusOK {
		return fmt.Errorf("%s", a)
	}
	if a.contentType() != "application/json" {
		return fmt.Errorf("Content-Type %q, expected application/json", a.Header.Get("Content-Type"))
	}
	if err := json.Unmarshal(a.Body, into); err != nil {
		return fmt.Errorf("unexpected JSON: %w: %s", err, oneLine(string(a.Body), 120))
	}
	return nil
}

// list reads an ExternalMetricValueList in JSON.
func (a *Answer) list() (*v1beta1.ExternalMetricValueList, error) {
	list := &v1beta1.ExternalMetricValueList{}
	if err := a.json(list); err != nil {
		return nil, err
	}
	return list, isList(list)
}

func isList(list *v1beta1.ExternalMetricValueList) error {
	if list.Kind != "ExternalMetricValueList" || list.APIVersion != externalGV.String() {
		return fmt.Errorf("kind %q of %q, expected ExternalMetricValueList of %s", list.Kind, list.APIVersion, externalGV)
	}
	return nil
}

var protobufScheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{v1beta1.AddToScheme, customv1beta1.AddToScheme, customv1beta2.AddToScheme, resourcemetrics.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}()

// protobufList reads an ExternalMetricValueList in Kubernetes' protobuf with Kubernetes' own decoder.
func (a *Answer) protobufList() (*v1beta1.ExternalMetricValueList, error) {
	return fromProtobuf[*v1beta1.ExternalMetricValueList](a)
}

// fromProtobuf reads a 200 in Kubernetes' protobuf that holds an object of this type.
func fromProtobuf[T runtime.Object](a *Answer) (expected T, err error) {
	if a.Code != http.StatusOK {
		return expected, fmt.Errorf("%s", a)
	}
	return decodeProtobuf[T](a)
}

func decodeProtobuf[T runtime.Object](a *Answer) (expected T, err error) {
	if a.contentType() != protobufType {
		return expected, fmt.Errorf("Content-Type %q, expected %s", a.Header.Get("Content-Type"), protobufType)
	}
	if !bytes.HasPrefix(a.Body, []byte("k8s\x00")) {
		return expected, fmt.Errorf("the body does not begin with k8s\\0")
	}
	object, kind, err := protobuf.NewSerializer(protobufScheme, protobufScheme).Decode(a.Body, nil, nil)
	if err != nil {
		return expected, fmt.Errorf("Kubernetes' decoder refuses it: %w", err)
	}
	expected, ok := object.(T)
	if !ok {
		return expected, fmt.Errorf("it holds a %s", kind)
	}
	return expected, nil
}

// status reads an error: a Status in JSON whose every field that clients need is right.
func (a *Answer) status() (*metav1.Status, error) {
	status := &metav1.Status{}
	if kind := a.contentType(); kind != "application/json" {
		return nil, fmt.Errorf("HTTP %d with Content-Type %q, expected a Status as application/json: %s", a.Code, kind, oneLine(string(a.Body), 120))
	}
	if err := json.Unmarshal(a.Body, status); err != nil {
		return nil, fmt.Errorf("HTTP %d, not JSON: %w", a.Code, err)
	}
	if status.Kind != "Status" || status.APIVersion != "v1" {
		return nil, fmt.Errorf("HTTP %d with kind %q of %q, expected Status of v1: %s", a.Code, status.Kind, status.APIVersion, oneLine(string(a.Body), 120))
	}
	return status, a.isFailure(status)
}

// isFailure checks a Status against the HTTP status. Its reason may be empty, which means that there is none.
func (a *Answer) isFailure(status *metav1.Status) error {
	switch {
	case status.Status != metav1.StatusFailure:
		return fmt.Errorf("HTTP %d with a Status of %q, expected Failure", a.Code, status.Status)
	case int(status.Code) != a.Code:
		return fmt.Errorf("HTTP %d with code %d in its Status", a.Code, status.Code)
	case status.Message == "":
		return fmt.Errorf("HTTP %d with an empty message: %s", a.Code, oneLine(string(a.Body), 120))
	}
	return nil
}

// refused is true of an error with this code and reason, as a Status; `seen` shows it.
func (a *Answer) refused(code int, reason metav1.StatusReason) (observed string, err error) {
	if a.Code != code {
		return "", fmt.Errorf("%s; expected %d %s", a, code, reason)
	}
	status, err := a.status()
	if err != nil {
		return "", err
	}
	if status.Reason != reason {
		return "", fmt.Errorf("%d with the reason %s, expected %s", code, status.Reason, reason)
	}
	return fmt.Sprintf("%d %s: %s", code, reason, oneLine(status.Message, 120)), nil
}

// String is the answer on one line.
func (a *Answer) String() string {
	return fmt.Sprintf("HTTP %d, %s, %s", a.Code, orNone(a.Header.Get("Content-Type")), oneLine(string(a.Body), 160))
}

func orNone(text string) string {
	if text == "" {
		return "no Content-Type"
	}
	return text
}

func short(path string) string { return strings.TrimPrefix(path, externalPath) }
