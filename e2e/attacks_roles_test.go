package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/rpc"
)

// Who is an administrator, a worker, or a node that has joined by a token, is no server; and none of them is anything at Raft's port.
func (a *attacked) wrongRole(t *testing.T) {
	admin := a.tls(t, a.issued(t, pki.Request{Kind: pki.Client, Name: "ada", Groups: []string{"system:masters"}}))
	node := a.tls(t, a.byToken(t, "w4"))
	of := map[string]*tls.Config{"an administrator": admin, "a worker": a.tls(t, a.issued(t, pki.Request{Kind: pki.Worker, Name: "w3"})), "a node": node}
	servers, workers := methodsOf(t, access.Servers, "/berth.rpc.Server/"), methodsOf(t, access.Nodes, "/berth.rpc.Worker/")
	for _, s := range a.Servers() {
		for who, config := range of {
			methods := append([]string{"/berth.rpc.Server/NoSuchThing", "/berth.rpc.NoSuchThing/Forward"}, servers...)
			if config == admin {
				methods = append(methods, workers...)
			}
			conn := a.dial(t, s, config)
			for _, method := range methods {
				if code := callStream(t, conn, method); code != codes.PermissionDenied && code != codes.Unauthenticated {
					t.Errorf("%s calls %s of %s: %v", who, method, s.Name, code)
				}
			}
			for _, name := range []string{"s1", "w3", "w4", "ada"} {
				if said, err := a.greet(t, s, config, name); said != "" || isTimeout(err) {
					t.Errorf("%s, at %s's Raft port, as %s: %q, %v", who, s.Name, name, said, err)
				}
			}
		}
		// Of a server the same words are answered: what was refused above is the certificate.
		server := a.tls(t, a.issued(t, pki.Request{Kind: pki.Server, Name: "s1"}))
		if said, err := a.greet(t, s, server, "s1"); !strings.Contains(said, `"server":"`+s.Name+`"`) {
			t.Errorf("a server, at %s's Raft port: %q, %v", s.Name, said, err)
		}
		if code := callStream(t, a.dial(t, s, server), "/berth.rpc.Server/Status"); code != codes.OK {
			t.Errorf("a server calls Status of %s: %v", s.Name, code)
		}
		// At the API neither a worker nor a server reads anybody's secrets; a node that is a user there does not either.
		for _, r := range []pki.Request{{Kind: pki.Worker, Name: "w3"}, {Kind: pki.Worker, Name: "w1"}, {Kind: pki.Server, Name: "s1"}} {
			a.nobodyAtTheAPI(t, s.HTTP(), a.tls(t, a.issued(t, r)))
		}
		a.nodeAtTheAPI(t, s, node)
	}
}

// methodsOf are those of a service that the table gives a group.
func methodsOf(t *testing.T, group, service string) (out []string) {
	t.Helper()
	for _, r := range access.Rules() {
		for _, method := range r.Methods {
			if r.Group == group && strings.HasPrefix(method, service) {
				out = append(out, method)
			}
		}
	}
	if len(out) < 5 {
		t.Fatalf("of %s there are %v", service, out)
	}
	return out
}

// callStream calls a method, of one message or of streams, and says what becomes of it.
func callStream(t *testing.T, conn *grpc.ClientConn, method string) codes.Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return status.Code(err)
	}
	var first any = &rpc.ForwardRequest{Hops: 1, Entries: []byte("x"), Server: "s1"}
	switch method {
	case "/berth.rpc.Worker/Connect":
		first = &rpc.WorkerMessage{Hello: &rpc.Hello{Name: "w1", Instance: "thief", Node: nodeOf(t, "w1")}}
	case "/berth.rpc.Worker/Tunnel":
		first = &rpc.Frame{Accept: &rpc.TunnelAccept{Node: "w1", ID: "1"}}
	case "/berth.rpc.Server/Tunnel":
		first = &rpc.Frame{Request: &rpc.TunnelRequest{Node: "w1", Kind: "logs"}}
	}
	_ = errors.Join(stream.SendMsg(first), stream.CloseSend()) // what becomes of it is told below
	err = stream.RecvMsg(new(rpc.StatusRequest))               // it has no field: whatever is answered can be read into it
	if errors.Is(err, io.EOF) {
		return codes.OK
	}
	return status.Code(err)
}

// greet asks at Raft's port who is there, as one server asks another, and returns what is answered.
func (a *attacked) greet(t *testing.T, s *fleet.Process, config *tls.Config, name string) (string, error) {
	t.Helper()
	conn := a.through(t, portOf(s, s.Ports.Raft), config)
	defer func() { _ = conn.Close() }() // it was only read
	question := fmt.Appendf(nil, `{"server":%q,"who":true}`, name)
	words := fmt.Appendf(nil, "BERTH-RAFT/2\n%c%c%s", 0, len(question), question) // a length of two bytes is before it
	if _, err := conn.Write(words); err != nil {
		return "", err
	}
	said, err := io.ReadAll(conn)
	return string(said), err
}

// byToken is the certificate of a node, got as a worker gets it: by a token to join, and a request.
func (a *attacked) byToken(t *testing.T, node string) tls.Certificate {
	t.Helper()
	id, secret, _ := strings.Cut(a.berth(t, "token", "create"), ".")
	secret, _, _ = strings.Cut(secret, ".")
	config := rest.AnonymousClientConfig(a.waitLeader(t).RESTConfig())
	config.BearerToken = id + "." + secret
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	wanted, key := requestFor(t, pki.NodeSubject(node), certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth)
	wanted.GenerateName = "node-"
	made, err := kube.CertificatesV1().CertificateSigningRequests().Create(t.Context(), wanted, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.eventually(t, "the certificate of "+node, func(ctx context.Context) error {
		if made, err = kube.CertificatesV1().CertificateSigningRequests().Get(ctx, made.Name, metav1.GetOptions{}); err == nil && len(made.Status.Certificate) == 0 {
			err = fmt.Errorf("it is %+v", made.Status)
		}
		return err
	})
	pair, err := tls.X509KeyPair(made.Status.Certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// nodeAtTheAPI: a node on which nothing is has of Berth's own paths that by which nodes join, and nobody's secrets, pods and logs.
func (a *attacked) nodeAtTheAPI(t *testing.T, s *fleet.Process, config *tls.Config) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}, Timeout: patience}
	defer client.CloseIdleConnections()
	requests := berthEndpoints()
	for _, path := range []string{
		"/api/v1/secrets", "/api/v1/namespaces/" + a.ns + "/secrets/secret", "/api/v1/namespaces/" + a.ns + "/configmaps/kube-root-ca.crt",
		"/api/v1/namespaces/" + a.ns + "/pods/bystander/log", "/api/v1/namespaces/" + a.ns + "/pods/bystander/exec?command=id", "/metrics",
	} {
		requests = append(requests, [2]string{http.MethodGet, path})
	}
	for _, r := range requests {
		want := http.StatusForbidden
		if r[1] == operator.PathJoin {
			want = http.StatusOK
		}
		if status, err := statusOf(t, client, r[0], "https://"+s.HTTP()+r[1], "", nil); status != want {
			t.Errorf("a node's %s %s at %s is answered %d, %v", r[0], r[1], s.Name, status, err)
		}
	}
}
