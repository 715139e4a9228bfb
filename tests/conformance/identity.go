package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The most powerful caller there is: what a thief would claim to be.
var master = identity{"system:admin", []string{"system:masters"}}

var identityChecks = []Check{
	{
		ID: "identity/front-proxy", Level: must, Needs: []need{direct},
		Promise: "the front proxy's certificate with a user, several group headers, a uid and extras gets the value",
		Why:     "so every request of an HPA arrives",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, header("X-Remote-Uid", "ed993f5c-0000-0000-0000-000000000000"),
				header("X-Remote-Extra-Authentication.kubernetes.io%2fcredential-Id", "JTI=28d8d4ce"))
			if err != nil {
				return "", err
			}
			return nonEmpty(answer.list())
		},
	},
	{
		ID: "identity/masters", Level: must, Needs: []need{direct},
		Promise: "the group system:masters may read everything",
		Why:     "kube-apiserver's own probes and administrators are in it",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, as(master))
			if err != nil {
				return "", err
			}
			return nonEmpty(answer.list())
		},
	},
	{
		ID: "identity/no-credential", Level: must, Needs: []need{direct},
		Promise: "a caller without any credential does not get the value",
		Why:     "the port is open to every pod of the cluster",
		Run:     func(e *Env) (string, error) { return e.closed(e.clientWith(nil), identity{}) },
	},
	{
		ID: "identity/spoofed", Level: must, Needs: []need{direct},
		Promise: "X-Remote-User and X-Remote-Group without the front proxy's certificate count for nothing",
		Why:     "else every pod is an administrator",
		Run:     func(e *Env) (string, error) { return e.closed(e.clientWith(nil), master) },
	},
	{
		ID: "identity/forged-proxy", Level: must, Needs: []need{direct},
		Promise: "neither do they with a certificate of the right name from another CA",
		Why:     "the name alone proves nothing",
		Run: func(e *Env) (string, error) {
			forged, err := selfSigned("front-proxy-client")
			if err != nil {
				return "", err
			}
			return e.closed(e.clientWith(&forged), master)
		},
	},
	{
		ID: "identity/spoofed-with-client-cert", Level: must, Needs: []need{direct, clientCertificate},
		Promise: "nor with a client certificate of the cluster: the caller is who the certificate says",
		Why:     "every kubelet has one",
		Run: func(e *Env) (string, error) {
			pair, err := tls.LoadX509KeyPair(e.clientCert, e.clientKey)
			if err != nil {
				return "", err
			}
			own, err := e.data(e.selector, by(e.clientWith(&pair)), as(identity{}))
			if err == nil && own.Code == http.StatusOK {
				return "", skip("the certificate's own user may read the metric: give one of a user who may not")
			}
			return e.closed(e.clientWith(&pair), master)
		},
	},
	{
		ID: "identity/no-user", Level: must, Needs: []need{direct},
		Promise: "the front proxy's certificate without a user gets no value",
		Why:     "the certificate is the proxy's, not a caller's",
		Run:     func(e *Env) (string, error) { return e.closed(e.client, identity{"", master.groups}) },
	},
	{
		ID: "identity/forbidden", Level: must, Needs: []need{direct},
		Promise: "a user without rights is refused with 403 Forbidden",
		Why:     "RBAC is the cluster's say over who reads; a 401 would make clients throw their token away",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, as(powerless))
			if err != nil {
				return "", err
			}
			return answer.refused(http.StatusForbidden, metav1.StatusReasonForbidden)
		},
	},
	{
		ID: "identity/impersonation", Level: must, Needs: []need{direct},
		Promise: "Impersonate-User and Impersonate-Group of such a user count for nothing",
		Why:     "only kube-apiserver impersonates; it removes these headers",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, as(powerless), header("Impersonate-User", master.user), header("Impersonate-Group", master.groups[0]))
			if err == nil && answer.Code/100 == 2 {
				err = fmt.Errorf("%s", answer)
			}
			return fmt.Sprintf("HTTP %d", answer.code()), err
		},
	},
	{
		ID: "identity/bad-token", Level: should, Needs: []need{direct},
		Promise: "a bearer token that nobody issued gets 401 Unauthorized",
		Why:     "a direct client then fetches a new one",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, by(e.clientWith(nil)), as(identity{}), header("Authorization", "Bearer conformance-no-such-token"))
			if err != nil {
				return "", err
			}
			return answer.refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		},
	},
	{
		ID: "identity/token", Level: should, Needs: []need{direct, bearer},
		Promise: "a bearer token of the cluster gets what its user may read",
		Why:     "direct callers: monitoring, tests",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, by(e.clientWith(nil)), as(identity{}), header("Authorization", "Bearer "+e.token))
			if err != nil {
				return "", err
			}
			return nonEmpty(answer.list())
		},
	},
}

// closed is no error when this caller gets a 401 or 403, or not even a connection.
func (e *Env) closed(client *http.Client, who identity) (string, error) {
	answer, err := e.data(e.selector, by(client), as(who))
	if err != nil {
		// Whether the server is there at all, the other checks have seen.
		return "no connection: " + oneLine(err.Error(), 100), nil
	}
	if answer.Code != http.StatusUnauthorized && answer.Code != http.StatusForbidden {
		return "", fmt.Errorf("%s", answer)
	}
	return fmt.Sprintf("HTTP %d", answer.Code), nil
}

// selfSigned is a client certificate that no cluster knows.
func selfSigned(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
