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

// The most powerful caller, whom an attacker would claim to be.
var superuser = identity{"system:admin", []string{"system:masters"}}

var identityChecks = []Check{
	{
		ID: "identity/front-proxy", Level: must, Needs: []need{direct},
		Promise: "the front proxy's certificate with a user, several group headers, a UID and extras gets the value",
		Why:     "every request of an HPA arrives this way",
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
			answer, err := e.data(e.selector, asIdentity(superuser))
			if err != nil {
				return "", err
			}
			return nonEmpty(answer.list())
		},
	},
	{
		ID: "identity/no-credential", Level: must, Needs: []need{direct},
		Promise: "a caller without credentials does not get the value",
		Why:     "the port is open to every pod of the cluster",
		Run:     func(e *Env) (string, error) { return e.closed(e.clientWith(nil), identity{}) },
	},
	{
		ID: "identity/spoofed", Level: must, Needs: []need{direct},
		Promise: "X-Remote-User and X-Remote-Group without the front proxy's certificate have no effect",
		Why:     "otherwise every pod is an administrator",
		Run:     func(e *Env) (string, error) { return e.closed(e.clientWith(nil), superuser) },
	},
	{
		ID: "identity/forged-proxy", Level: must, Needs: []need{direct},
		Promise: "X-Remote-User and X-Remote-Group with a certificate of the correct name from another CA have no effect",
		Why:     "the name alone proves nothing",
		Run: func(e *Env) (string, error) {
			forged, err := selfSigned("front-proxy-client")
			if err != nil {
				return "", err
			}
			return e.closed(e.clientWith(&forged), superuser)
		},
	},
	{
		ID: "identity/spoofed-with-client-cert", Level: must, Needs: []need{direct, clientCertificate},
		Promise: "X-Remote-User and X-Remote-Group with a client certificate of the cluster have no effect: the caller is the certificate's user",
		Why:     "every kubelet has one",
		Run: func(e *Env) (string, error) {
			pair, err := tls.LoadX509KeyPair(e.clientCert, e.clientKey)
			if err != nil {
				return "", err
			}
			own, err := e.data(e.selector, withClient(e.clientWith(&pair)), asIdentity(identity{}))
			if err == nil && own.Code == http.StatusOK {
				return "", skip("the certificate's own user may read the metric: give one of a user who may not")
			}
			return e.closed(e.clientWith(&pair), superuser)
		},
	},
	{
		ID: "identity/no-user", Level: must, Needs: []need{direct},
		Promise: "the front proxy's certificate without a user does not get the value",
		Why:     "the certificate is the proxy's, not a caller's",
		Run:     func(e *Env) (string, error) { return e.closed(e.client, identity{"", superuser.groups}) },
	},
	{
		ID: "identity/forbidden", Level: must, Needs: []need{direct},
		Promise: "a user without rights gets 403 Forbidden",
		Why:     "RBAC decides who may read; a 401 would make clients discard their token",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, asIdentity(unprivileged))
			if err != nil {
				return "", err
			}
			return answer.refused(http.StatusForbidden, metav1.StatusReasonForbidden)
		},
	},
	{
		ID: "identity/impersonation", Level: must, Needs: []need{direct},
		Promise: "Impersonate-User and Impersonate-Group of such a user have no effect",
		Why:     "only kube-apiserver impersonates; it removes these headers",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, asIdentity(unprivileged), header("Impersonate-User", superuser.user), header("Impersonate-Group", superuser.groups[0]))
			if err == nil && answer.Code/100 == 2 {
				err = fmt.Errorf("%s", answer)
			}
			return fmt.Sprintf("HTTP %d", answer.code()), err
		},
	},
	{
		ID: "identity/bad-token", Level: should, Needs: []need{direct},
		Promise: "an unknown bearer token gets 401 Unauthorized",
		Why:     "a direct client then fetches a new one",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, withClient(e.clientWith(nil)), asIdentity(identity{}), header("Authorization", "Bearer conformance-no-such-token"))
			if err != nil {
				return "", err
			}
			return answer.refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		},
	},
	{
		ID: "identity/token", Level: should, Needs: []need{direct, bearer},
		Promise: "a bearer token of the cluster can read what its user may read",
		Why:     "for direct callers such as monitoring and tests",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, withClient(e.clientWith(nil)), asIdentity(identity{}), header("Authorization", "Bearer "+e.token))
			if err != nil {
				return "", err
			}
			return nonEmpty(answer.list())
		},
	},
}

// closed accepts a 401, a 403, or a refused connection.
func (e *Env) closed(client *http.Client, who identity) (string, error) {
	answer, err := e.data(e.selector, withClient(client), asIdentity(who))
	if err != nil {
		// Other checks have shown that the server is reachable.
		return "no connection: " + oneLine(err.Error(), 100), nil
	}
	if answer.Code != http.StatusUnauthorized && answer.Code != http.StatusForbidden {
		return "", fmt.Errorf("%s", answer)
	}
	return fmt.Sprintf("HTTP %d", answer.Code), nil
}

// selfSigned returns a client certificate that no cluster trusts.
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
