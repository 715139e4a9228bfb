package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi3"
)

var openAPIChecks = []Check{
	{
		ID: "openapi/v3-index", Level: should,
		Promise: "/openapi/v3 lists the version with the address of its document",
		Why:     "kube-apiserver caches a 404 until the APIService is recreated, and converts v2 until then",
		Run: func(e *Env) (string, error) {
			index, err := e.openAPIIndex()
			if err != nil {
				return "", err
			}
			return index[strings.TrimPrefix(externalPath, "/")], nil
		},
	},
	{
		ID: "openapi/v3-document", Level: should,
		Promise: "client-go's openapi3 reads the version's document, which has schemas",
		Why:     "kubectl explain and client-side validation need it",
		Run: func(e *Env) (string, error) {
			if _, err := e.openAPIIndex(); err != nil {
				return "", skip("no index")
			}
			client, err := discovery.NewDiscoveryClientForConfig(e.config)
			if err != nil {
				return "", err
			}
			spec, err := openapi3.NewRoot(client.OpenAPIV3()).GVSpec(externalGV)
			if err != nil {
				return "", err
			}
			if spec.Paths == nil || spec.Components == nil || len(spec.Components.Schemas) == 0 {
				return "", fmt.Errorf("no paths or no schemas")
			}
			return fmt.Sprintf("%d paths, %d schemas", len(spec.Paths.Paths), len(spec.Components.Schemas)), nil
		},
	},
	{
		ID: "openapi/v3-explain", Level: should,
		Promise: "the document has a path for every listed resource, whose operation names its kind, and a schema of that kind",
		Why:     "kubectl explain looks it up this way; without it, it fails with `GVR not found in OpenAPI schema`",
		Run:     (*Env).explain,
	},
	{
		ID: "openapi/v3-etag", Level: should, Needs: []need{direct},
		Promise: "/openapi/v3 has an ETag, and a request with this ETag gets a 304",
		Why:     "kube-apiserver requests it repeatedly",
		Run:     func(e *Env) (string, error) { return e.notModified("/openapi/v3") },
	},
	{
		ID: "openapi/v2", Level: should,
		Promise: "/openapi/v2 is a swagger 2.0 document in JSON",
		Why:     "kube-apiserver merges it into the cluster's",
		Run: func(e *Env) (string, error) {
			var document struct {
				Swagger string         `json:"swagger"`
				Info    map[string]any `json:"info"`
				Paths   map[string]any `json:"paths"`
			}
			answer, err := e.get("/openapi/v2", asIdentity(openAPI), accept("application/json"))
			if err == nil {
				err = answer.json(&document)
			}
			if err == nil && (document.Swagger != "2.0" || document.Info == nil || document.Paths == nil) {
				err = fmt.Errorf("swagger %q, with info %v, with paths %v", document.Swagger, document.Info != nil, document.Paths != nil)
			}
			return fmt.Sprintf("%d paths, %d bytes", len(document.Paths), len(answer.body())), err
		},
	},
	{
		ID: "openapi/v2-client", Level: should,
		Promise: "client-go reads the v2 document",
		Why:     "it accepts only protobuf; older kubectl validates with it",
		Run: func(e *Env) (string, error) {
			if e.direct {
				return "", skip("only kube-apiserver's merged document is read so: needs --kubeconfig")
			}
			client, err := discovery.NewDiscoveryClientForConfig(e.config)
			if err != nil {
				return "", err
			}
			document, err := client.OpenAPISchema()
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%d definitions", len(document.GetDefinitions().GetAdditionalProperties())), nil
		},
	},
	{
		ID: "openapi/without-group", Level: should, Needs: []need{direct},
		Promise: "system:aggregator without any group may read /openapi/v2 and /openapi/v3",
		Why:     "kube-apiserver requests them this way, and treats a rejection as a broken document",
		Run: func(e *Env) (string, error) {
			observed := ""
			err := forEach([]string{"/openapi/v2", "/openapi/v3"}, func(path string) error {
				answer, err := e.get(path, asIdentity(openAPI))
				if err == nil && (answer.Code == 401 || answer.Code == 403 || answer.Code >= 500) {
					return fmt.Errorf("%s: %s", path, answer)
				} else if err == nil {
					observed += fmt.Sprintf("%s %d ", path, answer.Code)
				}
				return err
			})
			return strings.TrimSpace(observed), err
		},
	},
}

func (a *Answer) body() []byte {
	if a == nil {
		return nil
	}
	return a.Body
}

// openAPIIndex returns the v3 index, group version → address. It returns an error if the version under test is missing.
func (e *Env) openAPIIndex() (map[string]string, error) {
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	answer, err := e.get("/openapi/v3", asIdentity(openAPI))
	if err != nil {
		return nil, err
	}
	// kube-apiserver's own index is text/plain, so the type is not checked.
	if answer.Code != http.StatusOK || json.Unmarshal(answer.Body, &index) != nil {
		return nil, fmt.Errorf("%s", answer)
	}
	addresses := map[string]string{}
	for path, entry := range index.Paths {
		addresses[path] = entry.ServerRelativeURL
	}
	if addresses[strings.TrimPrefix(externalPath, "/")] == "" {
		return nil, fmt.Errorf("%s is not among %d paths", strings.TrimPrefix(externalPath, "/"), len(addresses))
	}
	return addresses, nil
}

// A kind as named in OpenAPI documents.
type namedKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

func (e *Env) explain() (string, error) {
	index, err := e.openAPIIndex()
	if err != nil {
		return "", skip("no index")
	}
	answer, err := e.get(index[strings.TrimPrefix(externalPath, "/")], accept("application/json"))
	if err != nil {
		return "", err
	}
	var document struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`

		Components struct {
			Schemas map[string]struct {
				Kinds []namedKind `json:"x-kubernetes-group-version-kind"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := answer.json(&document); err != nil {
		return "", err
	}
	schemas := map[namedKind]string{}
	for name, schema := range document.Components.Schemas {
		for _, kind := range schema.Kinds {
			schemas[kind] = name
		}
	}
	list, err := e.resources()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d resources, %d paths", len(list.APIResources), len(document.Paths)), forEach(list.APIResources, func(r metav1.APIResource) error {
		path := externalPath + "/namespaces/{namespace}/" + r.Name
		var operation struct {
			Kind namedKind `json:"x-kubernetes-group-version-kind"`
		}
		raw, found := document.Paths[path]["get"]
		if !found {
			return fmt.Errorf("no operation get of %s", path)
		}
		if err := json.Unmarshal(raw, &operation); err != nil {
			return err
		}
		if _, found := schemas[operation.Kind]; !found || operation.Kind.Kind == "" {
			return fmt.Errorf("%s is of %v, which no schema is", path, operation.Kind)
		}
		return nil
	})
}

func (e *Env) notModified(path string) (string, error) {
	answer, err := e.get(path, asIdentity(openAPI))
	if err != nil {
		return "", err
	}
	tag := answer.Header.Get("ETag")
	if answer.Code != http.StatusOK || tag == "" {
		return "", fmt.Errorf("HTTP %d, ETag %q", answer.Code, tag)
	}
	again, err := e.get(path, asIdentity(openAPI), header("If-None-Match", tag))
	if err == nil && again.Code != http.StatusNotModified {
		err = fmt.Errorf("If-None-Match: HTTP %d", again.Code)
	}
	return "304", err
}
