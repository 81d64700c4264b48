package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// fakeStreams is a worker that answers with what it was asked, and upgrades nothing.
type fakeStreams struct{}

func (fakeStreams) Open(_ context.Context, pod *corev1.Pod, what, container string) (net.Conn, error) {
	if pod.Name == "away" {
		return nil, apierrors.NewServiceUnavailable("the worker is not connected")
	}
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		r, err := http.ReadRequest(bufio.NewReader(theirs))
		if err != nil {
			return
		}
		text := fmt.Sprintf("%s %s %s, authorization %q", what, container, r.URL.Query()["command"], r.Header.Get("Authorization"))
		_ = (&http.Response{StatusCode: http.StatusTeapot, ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(strings.NewReader(text)),
			ContentLength: int64(len(text))}).Write(theirs)
	}()
	return ours, nil
}

// Dial is a pod that answers with what it was asked. One that is called crowded is so at first.
func (fakeStreams) Dial(_ context.Context, pod *corev1.Pod, port uint16) (net.Conn, error) {
	if pod.Name == "away" {
		return nil, apierrors.NewServiceUnavailable("the worker is not connected")
	}
	if pod.Name == "crowded" && crowd.Add(1) < 3 {
		return nil, apierrors.NewTooManyRequests("the pod has many", 1)
	}
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		r, err := http.ReadRequest(bufio.NewReader(theirs))
		if err != nil {
			return
		}
		body, _ := io.ReadAll(r.Body)
		text := fmt.Sprintf("%s %d %s %s %q, authorization %q", pod.Name, port, r.Method, r.URL, body, r.Header.Get("Authorization"))
		_ = (&http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(strings.NewReader(text)),
			ContentLength: int64(len(text))}).Write(theirs)
	}()
	return ours, nil
}

var crowd atomic.Int32

// enter asks for a part of a pod without the upgrade that would follow.
func enter(kube kubernetes.Interface, ns, pod, part string, params ...string) error {
	r := kube.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name(pod).SubResource(part)
	for i := 0; i < len(params); i += 2 {
		r = r.Param(params[i], params[i+1])
	}
	return r.Do(context.Background()).Error()
}

// TestStreamsRefused: whatever is in the way has Kubernetes' words and a status of its own.
func TestStreamsRefused(t *testing.T) {
	s := share(t)
	pods, ns, node := podsOn(t, s, "a", "away", "waits")
	for _, name := range []string{"a", "away"} {
		if err := bind(pods, name, node); err != nil {
			t.Fatal(err)
		}
	}
	kube := s.client(t)
	for _, part := range []string{"exec", "attach", "portforward"} {
		for pod, want := range map[string]struct {
			code  int32
			words string
		}{"none": {404, `pods "none" not found`}, "waits": {400, "pod waits does not have a host assigned"},
			"away": {503, "the worker is not connected"}, "a": {400, "Upgrade request required"}} {
			wantStatus(t, enter(kube, ns, pod, part, "command", "ls", "stdout", "true"), want.code, want.words)
		}
	}
	wantStatus(t, enter(kube, ns, "a", "exec", "stdout", "true"), 400, "you must specify at least one command")
	wantStatus(t, enter(kube, ns, "a", "exec", "command", "ls", "container", "none"), 400, "container none is not valid for pod a")
	wantStatus(t, enter(s.clientOf(t, "ann", "people"), "kube-system", "a", "exec", "command", "ls"), 403, `cannot create resource "pods/exec"`)
}

// TestStreamsReachTheWorker: with the container that is meant, and without the client's token.
func TestStreamsReachTheWorker(t *testing.T) {
	s := share(t)
	pods, ns, node := podsOn(t, s, "a")
	if err := bind(pods, "a", node); err != nil {
		t.Fatal(err)
	}
	config := s.config(t, "root", "system:masters")
	r, err := http.NewRequest(http.MethodPost, "https://"+s.Addr().String()+"/api/v1/namespaces/"+ns+"/pods/a/exec?command=ls&command=-l&stdout=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io"} {
		r.Header.Set(k, v)
	}
	trust, err := restclient.TLSConfigFor(config) // and no HTTP/2, in which nothing is upgraded
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true}}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if want := `exec main [ls -l], authorization ""`; err != nil || res.StatusCode != http.StatusTeapot || !bytes.Equal(b, []byte(want)) {
		t.Errorf("%d %q, %v; want %q", res.StatusCode, b, err, want)
	}
}

// TestStreamsTellNoSecrets: who may read no secret enters no pod that has one; what listens there is the pod's to tell.
func TestStreamsTellNoSecrets(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	p := testPod("keeps")
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}}}}
	pods := s.client(t).CoreV1().Pods(ns)
	if _, err := pods.Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.node(t, ns+"-node")
	if err := bind(pods, "keeps", ns+"-node"); err != nil {
		t.Fatal(err)
	}
	ann := s.clientOf(t, "ann", "people")
	for _, part := range []string{"exec", "attach"} {
		wantStatus(t, enter(ann, ns, "keeps", part, "command", "ls", "stdout", "true"), 403,
			`it refers to the secret "keys", and User "ann" cannot get resource "secrets"`)
		wantStatus(t, enter(s.client(t), ns, "keeps", part, "command", "ls", "stdout", "true"), 400, "Upgrade request required")
	}
	wantStatus(t, enter(ann, ns, "keeps", "portforward"), 400, "Upgrade request required")
}
