package main

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A server that answers 200 to everything may pass only checks about the connection, or about not rejecting requests.
func TestServerThatAlwaysAnswersOKFails(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // some checks break handshakes
	server.StartTLS()
	defer server.Close()
	certificate, key := pair(t)
	env, err := newEnv(&Options{
		server: server.URL, proxyCert: certificate, proxyKey: key, user: "somebody", namespace: "ns", metric: "m", selector: "a=b",
		multiSelector: "a", customObject: "Deployment.apps/web", customList: "a=b", token: "t", clientCert: certificate, clientKey: key,
		customRootObject: "Node/n", customNamespaceMetric: "m", pod: "web-0", podSelector: "a=b", node: "n", referenceServer: server.URL,
	})
	if err != nil {
		t.Fatal(err)
	}
	var checks []Check
	for _, check := range allChecks() {
		if check.ID != "transport/garbage" { // skip its fifty connections
			checks = append(checks, check)
		}
	}
	passing := []string{}
	report := runAll(env, checks, func(r Result) {
		if r.Outcome == "ok" {
			passing = append(passing, r.ID)
		}
	})
	want := []string{
		"discovery/probe", "discovery/probe-quick", "discovery/without-group", "discovery/client-legacy", "discovery/client-groups", "aggregated/understood",
		"aggregated/client", "openapi/without-group", "errors/no-retry-after", "errors/not-unauthorized",
		"transport/tls-versions", "transport/keep-alive", "transport/identity", "transport/gzip", "transport/content-length",
	} // and nothing of custom, resource and rules
	if !slices.Equal(passing, want) {
		t.Errorf("it passes\n%q\nexpected\n%q", passing, want)
	}
	if report.Passed+report.Failed+report.Skipped != len(checks) || report.Failed != len(report.Failing) {
		t.Errorf("the counts are wrong: %s of %d", total(report), len(checks))
	}
}

// requestCertificates asks clients for certificates and verifies none, because these tests have no CA.
func requestCertificates() *tls.Config { return &tls.Config{ClientAuth: tls.RequestClientCert} }

// pair writes a certificate and its key.
func pair(t *testing.T) (certificate, key string) {
	t.Helper()
	created, err := selfSigned("anybody")
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(created.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("crt", "CERTIFICATE", created.Certificate[0]), write("key", "EC PRIVATE KEY", der)
}
