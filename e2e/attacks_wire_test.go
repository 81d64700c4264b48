package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/pki"
)

// Noise, and sessions that break off in the middle of a word.
func (a *attacked) garbageOnEveryPort(t *testing.T) {
	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise) // it never fails
	hello := bytes.NewBuffer(nil)
	_ = tls.Client(recorder{Writer: hello}, a.tls(t)).Handshake() // there is nobody to answer
	frames := map[string][]byte{
		"noise": noise, "nothing": nil, "a newline": []byte("\n"), "half a greeting": hello.Bytes()[:hello.Len()/2], "a greeting and noise": append(bytes.Clone(hello.Bytes()), noise...),
		"a record of full length": append([]byte{22, 3, 3, 0x40, 0}, noise[:1<<14]...), "a request": []byte("POST /api/v1/pods HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"),
	}
	doors := a.doors()
	for _, s := range a.Servers() {
		doors = append(doors, door{s.Name + "'s gossip", portOf(s, s.Ports.Gossip)})
	}
	for _, d := range doors {
		for what, frame := range frames {
			for range 5 {
				conn, err := net.DialTimeout("tcp", d.addr, patience)
				if err != nil {
					t.Fatalf("%s: %v", d.name, err)
				}
				_, _ = conn.Write(frame) // it may be cut off in it
				if err := conn.Close(); err != nil {
					t.Errorf("%s, %s: %v", d.name, what, err)
				}
			}
		}
	}
	for _, s := range a.Servers() {
		conn, err := net.Dial("udp", portOf(s, s.Ports.Gossip))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2000 {
			_, _ = conn.Write(noise[:1+i%1400]) // nobody says whether it arrives
		}
		_ = conn.Close()
	}
}

// recorder is a connection that nobody answers on.
type recorder struct {
	net.Conn
	io.Writer
}

func (r recorder) Write(b []byte) (int, error) { return r.Writer.Write(b) }
func (recorder) Read([]byte) (int, error)      { return 0, io.EOF }
func (recorder) Close() error                  { return nil }

// tapped remembers what is sent.
type tapped struct {
	net.Conn
	mu   sync.Mutex
	sent bytes.Buffer
}

func (c *tapped) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.sent.Write(b)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// recorded is what was sent so far.
func (c *tapped) recorded() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.sent.Bytes())
}

// What an administrator has sent does nothing when it is sent once more, and neither does what members have.
func (a *attacked) recordedSession(t *testing.T) {
	s := a.waitLeader(t)
	plain, err := net.DialTimeout("tcp", s.HTTP(), patience)
	if err != nil {
		t.Fatal(err)
	}
	tap := &tapped{Conn: plain}
	conn := tls.Client(tap, a.tls(t, a.issued(t, pki.Request{Kind: pki.Client, Name: "ada", Groups: []string{"system:masters"}})))
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"recorded-"}}`
	if _, err := fmt.Fprintf(conn, "POST /api/v1/namespaces/%s/configmaps HTTP/1.1\r\nHost: berth\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", a.ns, len(body), body); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(answer), "201 Created") {
		t.Fatalf("%q, %v", answer, err)
	}
	_ = conn.Close()
	again, err := net.DialTimeout("tcp", s.HTTP(), patience)
	if err != nil {
		t.Fatal(err)
	}
	_, err = again.Write(tap.recorded())
	if err == nil {
		_ = again.SetDeadline(time.Now().Add(patience)) // else the read below waits as long as the test may
		_, err = io.ReadAll(again)
	}
	_ = again.Close()
	if isTimeout(err) {
		t.Errorf("the connection stays open: %v", err)
	}
	list, err := s.Kube.CoreV1().ConfigMaps(a.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, c := range list.Items {
		if strings.HasPrefix(c.Name, "recorded-") {
			made++
		}
	}
	if made != 1 {
		t.Errorf("%d were made", made)
	}
	a.recordedGossip(t)
}

// Bodies that are too large, too deep, or much larger than they look.
func (a *attacked) bodies(t *testing.T) {
	greta, ns := a.editor(t, "greta")
	huge := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"huge"},"data":{"a":"` + strings.Repeat("x", 100<<20) + `"}}`
	var bomb strings.Builder
	bomb.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := range 20 {
		fmt.Fprintf(&bomb, "a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i+1, i+1, i, i, i, i, i, i, i, i, i)
	}
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	for _, one := range []struct{ what, verb, path, contentType, body string }{
		{"100 MiB", http.MethodPost, path, "application/json", huge},
		{"100 MiB of protobuf", http.MethodPost, path, "application/vnd.kubernetes.protobuf", "k8s\x00" + strings.Repeat("\x0a", 100<<20)},
		{"deep arrays", http.MethodPost, path, "application/json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":` + strings.Repeat("[", 1<<20)},
		{"deep objects", http.MethodPost, path, "application/json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":` + strings.Repeat(`{"a":`, 300_000) + "1" + strings.Repeat("}", 300_001)},
		{"a bomb of references", http.MethodPost, path, "application/yaml", bomb.String()},
		{"a bomb, applied", http.MethodPatch, path + "/bomb?fieldManager=greta", "application/apply-patch+yaml", bomb.String()},
		{"deep YAML", http.MethodPost, path, "application/yaml", "a: " + strings.Repeat("[", 100_000)},
		{"a patch of many steps", http.MethodPatch, path + "/kube-root-ca.crt", "application/json-patch+json", "[" + strings.Repeat(`{"op":"copy","from":"/data","path":"/data/a"},`, 20_000) + `{"op":"test","path":"/data","value":1}]`},
		{"deep parameters", http.MethodPost, "/apis/berth.dev/v1/plans", "application/json", `{"spec":{"objects":[` + strings.Repeat("[", 500_000)},
	} {
		status := 0
		r := greta.Discovery().RESTClient().Verb(one.verb).RequestURI(one.path).SetHeader("Content-Type", one.contentType).Body([]byte(one.body)).MaxRetries(0)
		err := r.Do(t.Context()).StatusCode(&status).Error()
		var cut *net.OpError // the server may close before it was sent everything
		if (status < 400 || status >= 500) && !errors.As(err, &cut) && !strings.Contains(fmt.Sprint(err), "connection") {
			t.Errorf("%s is answered %d: %.200v", one.what, status, err)
		}
	}
	_, err := greta.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "small"}}, metav1.CreateOptions{})
	if err != nil {
		t.Errorf("what is small is accepted: %v", err)
	}
}

// Readers that ask for much and take nothing.
func (a *attacked) slowReaders(t *testing.T) {
	hans, ns := a.editor(t, "hans")
	for i := range 40 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("large-%d", i)}, Data: map[string]string{"a": strings.Repeat("x", 500<<10)}}
		if _, err := hans.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	config := a.tls(t, a.issued(t, pki.Request{Kind: pki.Client, Name: "hans", Groups: []string{"people"}}))
	leader := a.waitLeader(t)
	var mu sync.Mutex
	var all sync.WaitGroup
	var conns []net.Conn
	for i := range 200 {
		all.Go(func() {
			plain, err := net.DialTimeout("tcp", leader.HTTP(), patience)
			if err != nil {
				return // it is full
			}
			mu.Lock()
			conns = append(conns, plain)
			mu.Unlock()
			query := ""
			if i%2 == 0 {
				query = "?watch=true"
			}
			// Whether it is answered or refused: nothing of it is read.
			_, _ = fmt.Fprintf(tls.Client(plain, config), "GET /api/v1/namespaces/%s/configmaps%s HTTP/1.1\r\nHost: berth\r\n\r\n", ns, query)
		})
	}
	all.Wait()
	a.unharmed(t) // while they are there
	for _, c := range conns {
		_ = c.Close()
	}
}

// A link in a volume leads nowhere but into the volume.
func (a *attacked) pathsOutOfAVolume(t *testing.T) {
	kube := a.Reader().Kube
	p := pod(a.ns, "climber", "ls -l /out; exec sleep 1000", on("w1"), volume("v", "/out", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	p.Spec.Containers[0].VolumeMounts[0].SubPath = "link/root"
	first := *p.Spec.Containers[0].DeepCopy()
	first.Name, first.Command = "first", []string{"/bin/sh", "-c", "ln -s / /out/link"}
	first.VolumeMounts[0].SubPath = ""
	p.Spec.InitContainers = []corev1.Container{first}
	create(t, kube, p)
	a.eventually(t, "the link to be refused", func(ctx context.Context) error {
		now, err := kube.CoreV1().Pods(a.ns).Get(ctx, "climber", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(now.Status.ContainerStatuses) == 0 || now.Status.ContainerStatuses[0].State.Waiting == nil {
			return fmt.Errorf("it is %+v", now.Status.ContainerStatuses)
		}
		if s := now.Status.ContainerStatuses[0]; s.State.Running != nil || s.ContainerID != "" {
			t.Fatalf("it runs: %+v", s)
		}
		if w := now.Status.ContainerStatuses[0].State.Waiting; !strings.Contains(w.Reason, "Error") {
			return fmt.Errorf("it is %+v", w)
		}
		return nil
	})
	for _, path := range []string{"../../etc", "/etc", "a/../../etc"} {
		bad := pod(a.ns, "bad", "true", volume("v", "/out", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
		bad.Spec.Containers[0].VolumeMounts[0].SubPath = path
		if _, err := kube.CoreV1().Pods(a.ns).Create(t.Context(), bad, metav1.CreateOptions{}); err == nil {
			t.Errorf("the sub path %s is accepted", path)
		}
	}
}

// What the agent was started with is none of a pod's business.
func (a *attacked) environmentOfTheAgent(t *testing.T) {
	create(t, a.Reader().Kube, pod(a.ns, "curious", "env; tr '\\0' '\\n' < /proc/$PPID/environ; ls -l /proc/self/fd; echo done; exec sleep 1000", on("w1")))
	a.waitRunning(t, a.ns, "curious")
	a.eventually(t, "the pod to have looked", func(context.Context) error {
		log := run(t, a.env, "", "logs", "curious", "-n", a.ns).out
		if strings.Contains(log, environmentSecret) {
			t.Fatalf("it sees\n%s", log)
		}
		if !strings.Contains(log, "\ndone") {
			return fmt.Errorf("it says %q", log)
		}
		return nil
	})
}
