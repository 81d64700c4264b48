package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/docs"
	"github.com/berth-dev/berth/fsm"
)

// asks is a request for a certificate.
func asks(t testing.TB, name, signer string, wanted x509.CertificateRequest, usages ...certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &wanted, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer, Usages: usages, Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	}
}

func named(user string, groups ...string) x509.CertificateRequest {
	return x509.CertificateRequest{Subject: pkix.Name{CommonName: user, Organization: groups}}
}

// grantTo gives a user a role of its own in the whole cluster.
func grantTo(t *testing.T, root kubernetes.Interface, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}
	if _, err := root.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
	if _, err := root.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestRequestsForCertificates: who asks is written into the request, and who approves or signs
// needs the right to do so for its signer.
func TestRequestsForCertificates(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := t.Context()
	root := s.client(t)
	grant := func(user string, rules ...rbacv1.PolicyRule) { t.Helper(); grantTo(t, root, user, rules...) }
	on := func(resource string, names []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
	}
	const requests = "certificatesigningrequests"
	grant("ann", on(requests, nil, "create", "get"))
	grant("joe", on(requests+"/approval", nil, "update"), on(requests+"/status", nil, "update"),
		on("signers", []string{certificatesv1.KubeAPIServerClientSignerName}, "approve"))

	wanted := asks(t, "dev", certificatesv1.KubeAPIServerClientSignerName, named("dev", "people"), certificatesv1.UsageClientAuth)
	wanted.Spec.Username, wanted.Spec.Groups = "root", []string{"system:masters"}
	made, err := s.clientOf(t, "ann", "people").CertificatesV1().CertificateSigningRequests().Create(ctx, wanted, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.Spec.Username != "ann" || len(made.Spec.Groups) != 2 || made.Spec.Groups[0] != "people" {
		t.Errorf("the request is of %s, of %v", made.Spec.Username, made.Spec.Groups)
	}
	serving := asks(t, "serving", certificatesv1.KubeletServingSignerName, named("system:node:n1", "system:nodes"), certificatesv1.UsageServerAuth)
	if _, err := root.CertificatesV1().CertificateSigningRequests().Create(ctx, serving, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	joe := s.clientOf(t, "joe").CertificatesV1().CertificateSigningRequests()
	yes := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Known"}
	serving.Status.Conditions = append(serving.Status.Conditions, yes)
	_, err = joe.UpdateApproval(ctx, "serving", serving, metav1.UpdateOptions{})
	wantStatus(t, err, 403, `user not permitted to approve requests with signerName "kubernetes.io/kubelet-serving"`)
	made.Status.Conditions = append(made.Status.Conditions, yes)
	if made, err = joe.UpdateApproval(ctx, "dev", made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(made.Status.Conditions) != 1 || made.Status.Conditions[0].Type != certificatesv1.CertificateApproved {
		t.Errorf("approved, it has %v", made.Status.Conditions)
	}
	made.Status.Certificate = s.caPEM
	_, err = joe.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	wantStatus(t, err, 403, `user not permitted to sign requests with signerName "kubernetes.io/kube-apiserver-client"`)
}

// TestNobodyAsksToBeBerth: servers, workers and their names are out of reach for whoever may ask.
func TestNobodyAsksToBeBerth(t *testing.T) {
	s := start(t, newDouble(t), nil)
	requests := s.client(t).CertificatesV1().CertificateSigningRequests()
	serving := func(names []string, ips ...net.IP) x509.CertificateRequest {
		r := named("system:node:n1", "system:nodes")
		r.DNSNames, r.IPAddresses = names, ips
		return r
	}
	const client, server = certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeletServingSignerName
	for _, tt := range []struct {
		name, signer string
		wanted       x509.CertificateRequest
		usage        certificatesv1.KeyUsage
		refusal      string
	}{
		{"a-server", client, named("berth:server:s1", "berth:servers"), certificatesv1.UsageClientAuth, `"berth:server:s1" is a name of Berth's own parts`},
		{"a-worker", client, named("ann", "berth:workers"), certificatesv1.UsageClientAuth, `"berth:workers" is a name of Berth's own parts`},
		{"masters", client, named("ann", "system:masters"), certificatesv1.UsageClientAuth, "system:masters group is not allowed"},
		{"server-name", server, serving([]string{"n1", "Server.Berth.Internal"}), certificatesv1.UsageServerAuth, "is that of the servers"},
		{"api", server, serving([]string{"kubernetes.default.svc"}), certificatesv1.UsageServerAuth, "is that of the servers"},
		{"any", server, serving([]string{"*.example.com"}), certificatesv1.UsageServerAuth, "is that of the servers"},
		{"loopback", server, serving(nil, net.IPv4(127, 0, 0, 1)), certificatesv1.UsageServerAuth, "127.0.0.1 is everybody's"},
		{"no-name", client, named("system:node:", "system:nodes"), certificatesv1.UsageClientAuth, `"system:node:" is no node's`},
		{"capitals", client, named("system:node:Worker-1", "system:nodes"), certificatesv1.UsageClientAuth, `"system:node:Worker-1" is no node's`},
		{"a-blank", server, named("system:node:worker-1 ", "system:nodes"), certificatesv1.UsageServerAuth, "is no node's"},
		{"honest", server, serving([]string{"n1.example.com"}, net.IPv4(192, 0, 2, 1)), certificatesv1.UsageServerAuth, ""},
		{"elsewhere", "example.com/own", named("berth:server:s1"), certificatesv1.UsageClientAuth, ""},
	} {
		_, err := requests.Create(t.Context(), asks(t, tt.name, tt.signer, tt.wanted, tt.usage), metav1.CreateOptions{})
		if tt.refusal == "" && err != nil {
			t.Errorf("%s: %v", tt.name, err)
		} else if tt.refusal != "" {
			wantStatus(t, err, 403, tt.refusal)
		}
	}
}

// TestRequestsForCertificatesAreLater: as long as a server does not know their kind, there are none.
func TestRequestsForCertificatesAreLater(t *testing.T) {
	s := start(t, newDoubleAt(t, 10), nil)
	wanted := asks(t, "dev", certificatesv1.KubeAPIServerClientSignerName, named("dev"), certificatesv1.UsageClientAuth)
	_, err := s.client(t).CertificatesV1().CertificateSigningRequests().Create(t.Context(), wanted, metav1.CreateOptions{})
	wantStatus(t, err, 400, "certificatesigningrequests")
}

// certificateShares: nobody has so many requests kept that others find no room.
func certificateShares(t *testing.T, r docs.Row) {
	s := start(t, newDouble(t), nil)
	bounds := r.Numbers(t, 3)
	grantTo(t, s.client(t), "ann", rbacv1.PolicyRule{
		Verbs: []string{"create"}, APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests"},
	})
	wanted := asks(t, "", "example.com/any", named("somebody"), certificatesv1.UsageClientAuth)
	for at, of := range []struct{ user, group string }{
		{"ann", "people"}, {"system:bootstrap:abcdef", "system:bootstrappers"}, {"system:node:n1", "system:nodes"},
	} {
		requests := s.clientOf(t, of.user, of.group).CertificatesV1().CertificateSigningRequests()
		create := func() error {
			w := wanted.DeepCopy()
			w.GenerateName = "r-"
			_, err := requests.Create(t.Context(), w, metav1.CreateOptions{})
			return err
		}
		const asked = 10 // by request; the others are there already
		var there []fsm.Command
		for i := range bounds[at] - asked {
			w := wanted.DeepCopy()
			w.Name = fmt.Sprintf("there-%d-%d", at, i)
			w.UID, w.Spec.Username = types.UID(w.Name), of.user
			raw, err := w.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			there = append(there, &fsm.PutObject{Resource: fsm.CertificateRequests, Create: true, Raw: raw})
		}
		s.double.must(t, there...)
		for range asked {
			if err := create(); err != nil {
				t.Fatalf("%s: %v", of.user, err)
			}
		}
		wantStatus(t, create(), 429, fmt.Sprintf("has asked for %d certificates whose requests are kept still", bounds[at]))
	}
	other := s.clientOf(t, "system:bootstrap:ghijkl", "system:bootstrappers").CertificatesV1().CertificateSigningRequests()
	wanted.Name = "by-another-token"
	if _, err := other.Create(t.Context(), wanted, metav1.CreateOptions{}); err != nil {
		t.Errorf("by another token: %v", err)
	}
}
