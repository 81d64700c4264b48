package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// openStreams is a worker whose streams begin, and end when they are ended.
type openStreams struct{ fakeStreams }

// Open implements Streams.
func (openStreams) Open(ctx context.Context, _ *corev1.Pod, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	context.AfterFunc(ctx, func() { _ = ours.Close() })
	go func() {
		defer theirs.Close()
		if _, err := http.ReadRequest(bufio.NewReader(theirs)); err != nil {
			return
		}
		_, _ = io.WriteString(theirs, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		_, _ = io.Copy(io.Discard, theirs)
	}()
	return ours, nil
}

// A stream into a pod that refers to a secret ends when its user may read the secrets no more.
func TestStreamsIntoPodsWithSecretsEndWithTheRightToThem(t *testing.T) {
	s, root := withRolesAnd(t, func(c *Config) { c.Streams = openStreams{} })
	ctx := t.Context()
	s.node(t, "n1")
	p := testPod("keeps")
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}}}}
	if _, err := root.CoreV1().Pods("team").Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := bind(root.CoreV1().Pods("team"), "keeps", "n1"); err != nil {
		t.Fatal(err)
	}
	if err := grant(t, root, "enters", "ann", rule("create", "", "pods/exec")); err != nil {
		t.Fatal(err)
	}
	if err := grant(t, root, "reads", "ann", rule("get", "", "secrets")); err != nil {
		t.Fatal(err)
	}
	config, err := restclient.TLSConfigFor(s.config(t, "ann"))
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"http/1.1"}
	conn, err := tls.Dial("tcp", s.Addr().String(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "POST /api/v1/namespaces/team/pods/keeps/exec?command=ls&stdout=true HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"+
		"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if answer, err := http.ReadResponse(in, nil); err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", answer, err)
	}
	if err := root.RbacV1().RoleBindings("team").Delete(ctx, "reads", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		t.Log(err) // it has ended
	}
}

// What somebody does as somebody else ends when he may not act as that one any more.
func TestWhatLastsEndsWithTheRightToActAsOthers(t *testing.T) {
	s, root := withRoles(t)
	ctx := t.Context()
	if err := grant(t, root, "reader", "ann", rule("list watch", "", "pods")); err != nil {
		t.Fatal(err)
	}
	helper := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "helpdesk"}, Rules: []rbacv1.PolicyRule{rule("impersonate", "", "users", "ann")}}
	if _, err := root.RbacV1().ClusterRoles().Create(ctx, helper, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, group := range map[string]string{"helpdesk": "desk", "others": "others"} {
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "helpdesk"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}}}
		if _, err := root.RbacV1().ClusterRoleBindings().Create(ctx, b, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	watches := func(user, group string) <-chan struct{} {
		t.Helper()
		config := s.config(t, user, group)
		config.Impersonate = restclient.ImpersonationConfig{UserName: "ann"}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		w, err := client.CoreV1().Pods("team").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for range w.ResultChan() {
			}
		}()
		return ended
	}
	hal, joe := watches("hal", "desk"), watches("joe", "others")
	if err := root.RbacV1().ClusterRoleBindings().Delete(ctx, "helpdesk", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	<-hal
	select {
	case <-joe:
		t.Error("who may still act as her does not any more")
	default:
	}
}
