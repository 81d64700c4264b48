package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/docs"
	"github.com/berth-dev/berth/pki"
)

// attacks are what somebody does from outside who means harm, by the rows of docs/security.md.
var attacks = map[string]func(*attacked, *testing.T){
	"no credentials":               (*attacked).noCredentials,
	"a foreign certificate":        (*attacked).foreignCertificate,
	"an expired certificate":       (*attacked).expiredCertificate,
	"the wrong role":               (*attacked).wrongRole,
	"a worker asks for others":     (*attacked).workerAsksForOthers,
	"a worker reports for others":  (*attacked).workerReportsForOthers,
	"a worker floods":              (*attacked).workerFloods,
	"a user without rights":        (*attacked).userWithoutRights,
	"a class by template":          (*attacked).classByTemplate,
	"why and plan of others":       (*attacked).whyAndPlanOfOthers,
	"a watch of before":            (*attacked).watchOfBefore,
	"gossip without its key":       (*attacked).gossipWithoutKey,
	"gossip of a forged server":    (*attacked).gossipOfAForgedServer,
	"garbage on every port":        (*attacked).garbageOnEveryPort,
	"frames behind the handshake":  (*attacked).framesAfterTheHandshake,
	"a recorded session":           (*attacked).recordedSession,
	"bodies":                       (*attacked).bodies,
	"costly bodies":                (*attacked).costlyBodies,
	"a node takes all":             (*attacked).nodeTakesAll,
	"a selector of nobody":         (*attacked).selectorsWithoutCredentials,
	"idle connections":             (*attacked).idleConnections,
	"slow readers":                 (*attacked).slowReaders,
	"paths out of a volume":        (*attacked).pathsOutOfAVolume,
	"volumes of objects":           (*attacked).volumesOfObjects,
	"links that move":              (*attacked).linksThatMove,
	"the environment of the agent": (*attacked).environmentOfTheAgent,
}

const (
	// environmentSecret is a variable of the agents that no pod may see.
	environmentSecret = "BERTH_E2E_ENVIRONMENT_OF_THE_AGENT"
	// mostResident is what a server may hold in memory, whatever is done to it.
	mostResident = 2 << 30
	// mostLogged is what it may write into its log of all of them together.
	mostLogged = 2 << 20
)

// attacked is a cluster, and somebody's work in it that nobody is to notice anything of: a pod on w1, and a secret that it
// mounts. The name w3 is a worker's whose key was stolen: no agent of that name runs.
type attacked struct {
	*cluster
	ns        string
	bystander *corev1.Pod
	made      int
}

// Whatever is done from outside, it is refused, and nobody else notices.
func TestAttacks(t *testing.T) {
	t.Setenv(environmentSecret, "known")
	c := newCluster(t, server("s1", "bootstrap_expect = 3"), server("s2", "bootstrap_expect = 3"), server("s3", "bootstrap_expect = 3"),
		worker("w1"), worker("w2", `runtime = "fake"`))
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := &attacked{cluster: c, ns: c.namespace(t, "bystanders")}
	kube := c.Reader().Kube
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, StringData: map[string]string{"key": "nobody's"}}
	if _, err := kube.CoreV1().Secrets(a.ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create(t, kube, pod(a.ns, "bystander", "exec sleep 100000", on("w1"),
		volume("secret", "/secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}})))
	a.bystander = c.waitRunning(t, a.ns, "bystander")[0]
	tests := map[string]func(*testing.T, docs.Row){}
	for name, attack := range attacks {
		tests[name] = func(t *testing.T, _ docs.Row) {
			attack(a, t)
			a.unharmed(t)
		}
	}
	docs.Hold(t, "../docs/security.md", "## Attacks", tests)
	c.verify(t, 3)
}

// unharmed: everybody lives, in bounds; the bystander's pod is what it was, and a new one is placed and started.
func (a *attacked) unharmed(t *testing.T) {
	t.Helper()
	if err := a.Alive(); err != nil {
		t.Fatal(err)
	}
	for _, s := range a.Servers() {
		if resident := residentBytes(t, s.PID()); resident > mostResident {
			t.Errorf("%s holds %d MiB", s.Name, resident>>20)
		}
		if log, err := os.Stat(s.Log); err != nil || log.Size() > mostLogged {
			t.Errorf("the log of %s: %d bytes, %v", s.Name, log.Size(), err)
		}
	}
	now := a.waitRunning(t, a.ns, "bystander")[0]
	if now.UID != a.bystander.UID || now.Status.ContainerStatuses[0].RestartCount != 0 || now.Spec.NodeName != "w1" {
		t.Errorf("the bystander's pod is another one: %+v", now.Status)
	}
	a.made++
	name := "after-" + strconv.Itoa(a.made)
	a.eventually(t, "a pod to be accepted", func(ctx context.Context) error {
		_, err := a.Reader().Kube.CoreV1().Pods(a.ns).Create(ctx, pod(a.ns, name, "true", on("w2")), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // an answer was lost on its way
		}
		if err != nil {
			t.Logf("the bystander is told: %v", err)
		}
		return err
	})
	a.waitRunning(t, a.ns, name)
	if err := a.Reader().Kube.CoreV1().Pods(a.ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// residentBytes is what a process holds in memory now.
func residentBytes(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// door is a port that speaks TLS.
type door struct{ name, addr string }

// doors are all of the servers' that speak TLS, and the workers', if they have any.
func (a *attacked) doors() (out []door) {
	for _, s := range a.Servers() {
		out = append(out, door{s.Name + "'s API", s.HTTP()}, door{s.Name + "'s RPC", portOf(s, s.Ports.RPC)}, door{s.Name + "'s Raft", portOf(s, s.Ports.Raft)})
	}
	return out
}

func portOf(p *fleet.Process, port int) string {
	host, _, _ := net.SplitHostPort(p.HTTP()) // the fleet's own
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// issued is a certificate of the cluster's CA.
func (a *attacked) issued(t *testing.T, r pki.Request) tls.Certificate {
	t.Helper()
	ca, err := pki.LoadCA(filepath.Join(a.Dir, "ca"))
	if err != nil {
		t.Fatal(err)
	}
	return issuedBy(t, ca, r)
}

func issuedBy(t *testing.T, ca *pki.CA, r pki.Request) tls.Certificate {
	t.Helper()
	pair, err := ca.Issue(time.Now(), r)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// tls trusts the cluster, and shows what it is given.
func (a *attacked) tls(t *testing.T, certs ...tls.Certificate) *tls.Config {
	t.Helper()
	pem, err := os.ReadFile(filepath.Join(a.Dir, "ca", pki.CAFile))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatal("the CA's file has no certificate")
	}
	config := &tls.Config{RootCAs: roots, ServerName: pki.ServerDNSName, MinVersion: tls.VersionTLS12}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if len(certs) == 0 {
			return new(tls.Certificate), nil
		}
		return &certs[0], nil // whatever the server would like to see
	}
	return config
}

// shut: who comes so learns nothing at any door but the API's, which knows him for nobody.
func (a *attacked) shut(t *testing.T, config *tls.Config) {
	t.Helper()
	for _, d := range a.doors() {
		if strings.HasSuffix(d.name, "API") {
			a.nobodyAtTheAPI(t, d.addr, config)
			continue
		}
		protocols := config.Clone()
		protocols.NextProtos = []string{"h2"}
		if said, err := speak(d.addr, protocols); err == nil {
			t.Errorf("%s says %q", d.name, said)
		} else if isTimeout(err) {
			t.Errorf("%s leaves the connection open: %v", d.name, err)
		}
	}
}

// speak shakes hands and says what an HTTP/2 client says first; it returns what is answered.
func speak(addr string, config *tls.Config) (string, error) {
	plain, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return "", err
	}
	defer func() { _ = plain.Close() }()
	if err := plain.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	conn := tls.Client(plain, config)
	if err := conn.Handshake(); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		return "", err
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if n > 0 {
		return string(answer[:n]), nil
	}
	return "", err
}

func isTimeout(err error) bool {
	var slow net.Error
	return errors.As(err, &slow) && slow.Timeout()
}

// nobodysPaths are of every kind of thing that the API serves, but for what is below /berth/v1.
var nobodysPaths = []string{
	"/api/v1/pods", "/api/v1/namespaces/bystanders/secrets/secret", "/apis/apps/v1/deployments", "/api/v1/namespaces/bystanders/pods/bystander/log",
	"/api/v1/namespaces/bystanders/pods/bystander/exec?command=id", "/metrics", "/openapi/v3", "/debug/api_priority_and_fairness/dump_requests", "/apis/metrics.k8s.io/v1beta1/nodes",
}

// nobodyAtTheAPI: nothing is served but to whoever is somebody.
func (a *attacked) nobodyAtTheAPI(t *testing.T, addr string, config *tls.Config) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}, Timeout: patience}
	defer client.CloseIdleConnections()
	requests := berthEndpoints()
	for _, path := range nobodysPaths {
		requests = append(requests, [2]string{http.MethodGet, path})
	}
	for _, r := range requests {
		status, err := statusOf(t, client, r[0], "https://"+addr+r[1], "", nil)
		if err == nil && status != http.StatusUnauthorized && status != http.StatusForbidden {
			t.Errorf("%s %s answers %d", r[0], r[1], status)
		}
		if err != nil && isTimeout(err) {
			t.Errorf("%s %s: %v", r[0], r[1], err)
		}
	}
}

func statusOf(t *testing.T, client *http.Client, method, url, contentType string, header http.Header) (int, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		request.Header = header
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// A client without a certificate, with a token that is nobody's, and in clear.
func (a *attacked) noCredentials(t *testing.T) {
	a.shut(t, a.tls(t))
	for _, s := range a.Servers() {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: a.tls(t)}, Timeout: patience}
		defer client.CloseIdleConnections()
		for _, credentials := range []string{"Bearer abcdef.0123456789abcdef", "Bearer a.b.c", "Basic YWRhOmFkYQ=="} {
			status, err := statusOf(t, client, http.MethodGet, "https://"+s.HTTP()+"/api/v1/pods", "", http.Header{"Authorization": {credentials}})
			if err != nil || status != http.StatusUnauthorized && status != http.StatusForbidden {
				t.Errorf("%s: %d, %v", credentials, status, err)
			}
		}
		// A header that a proxy in front might have set makes nobody somebody.
		forged := http.Header{"X-Remote-User": {"ada"}, "X-Remote-Group": {"system:masters"}, "Impersonate-User": {"ada"}, "Impersonate-Group": {"system:masters"}}
		if status, err := statusOf(t, client, http.MethodGet, "https://"+s.HTTP()+"/api/v1/pods", "", forged); err != nil || status != http.StatusUnauthorized && status != http.StatusForbidden {
			t.Errorf("forged headers: %d, %v", status, err)
		}
		if status, err := statusOf(t, client, http.MethodGet, "https://"+s.HTTP()+"/readyz", "", nil); err != nil || status != http.StatusOK {
			t.Errorf("health is everybody's: %d, %v", status, err)
		}
	}
	for _, d := range a.doors() {
		conn, err := net.DialTimeout("tcp", d.addr, patience)
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(conn, "GET /api/v1/pods HTTP/1.1\r\nHost: %s\r\n\r\n", d.addr)
		answer := make([]byte, 1<<10)
		n := 0
		if err = errors.Join(err, conn.SetDeadline(time.Now().Add(patience))); err == nil {
			n, err = conn.Read(answer)
		}
		if isTimeout(err) || strings.Contains(string(answer[:n]), "200 OK") {
			t.Errorf("%s, in clear: %q, %v", d.name, answer[:n], err)
		}
		_ = conn.Close()
	}
}

// A certificate of another CA, of whatever kind, is none.
func (a *attacked) foreignCertificate(t *testing.T) {
	ca, err := pki.NewCA(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []pki.Request{{Kind: pki.Client, Name: "ada", Groups: []string{"system:masters"}}, {Kind: pki.Server, Name: "s1"}, {Kind: pki.Worker, Name: "w1"}} {
		a.shut(t, a.tls(t, issuedBy(t, ca, r)))
	}
}

// One whose time is over is none either.
func (a *attacked) expiredCertificate(t *testing.T) {
	for _, r := range []pki.Request{{Kind: pki.Client, Name: "ada", Groups: []string{"system:masters"}}, {Kind: pki.Server, Name: "s1"}, {Kind: pki.Worker, Name: "w1"}} {
		r.Validity = time.Nanosecond
		a.shut(t, a.tls(t, a.issued(t, r)))
	}
}
