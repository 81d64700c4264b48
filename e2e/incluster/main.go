// Command incluster asks the API from inside of a pod, by nothing but what every
// pod has, as client-go's rest.InClusterConfig does. It prints the status and
// the first object's kind and name for each path.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

func main() {
	for _, path := range os.Args[1:] {
		answer, err := ask(path)
		if err != nil {
			answer = err.Error()
		}
		fmt.Println(answer)
	}
}

func ask(path string) (string, error) {
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return "", err
	}
	ca, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return "", err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return "", errors.New("no certificate authority")
	}
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	r, err := http.NewRequest(http.MethodGet, "https://"+net.JoinHostPort(host, port)+path, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	c := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	resp, err := c.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	var o struct {
		Kind     string
		Metadata struct{ Name string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&o); err != nil {
		return "", err
	}
	return strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", o.Kind, " ", o.Metadata.Name)), nil
}
