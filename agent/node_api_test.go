package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// noServers is an uplink of a worker that is not run.
type noServers struct{ worker.Uplink }

// A worker shows its pods where a kubelet does, with and without a slash at the end, and can be asked for nothing else there.
func TestNodeShowsItsPods(t *testing.T) {
	rt := fake.New(fake.NewTimeline(nil))
	node, err := newNode(&WorkerConfig{Node: worker.NodeConfig{Name: "n"}}, rt)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := worker.New(worker.Options{Node: node, Runtime: rt, Uplink: noServers{}})
	if err != nil {
		t.Fatal(err)
	}
	api := newNodeAPI(agent, nil, nil)
	for path, code := range map[string]int{
		"GET /pods": 200, "GET /pods/": 200, "GET /runningpods": 200, "GET /runningpods/": 200, "GET /pods/default": 404, "POST /pods": 404, "GET /run/default/p/c": 404,
	} {
		method, to, _ := strings.Cut(path, " ")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, httptest.NewRequest(method, to, nil))
		var list corev1.PodList
		if w.Code != code || code == 200 && (json.Unmarshal(w.Body.Bytes(), &list) != nil || list.Kind != "PodList" || list.Items == nil) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// What the servers would cut is not begun.
func TestPodsThatAreTooMany(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Name, pod.Spec.Containers = "p", []corev1.Container{{Args: []string{strings.Repeat("x", 1<<20)}}}
	for n, code := range map[int]int{0: 200, 3: 200, 15: 200, 16: 500} {
		pods := make([]*corev1.Pod, n)
		for i := range pods {
			pods[i] = pod
		}
		w := httptest.NewRecorder()
		writePods(w, pods)
		var list corev1.PodList
		switch err := json.Unmarshal(w.Body.Bytes(), &list); {
		case w.Code != code, w.Body.Len() > model.MaxNodeAnswerBytes:
			t.Errorf("%d pods: %d, %d bytes", n, w.Code, w.Body.Len())
		case code == http.StatusOK && (err != nil || len(list.Items) != n):
			t.Errorf("%d pods: %d are read, %v", n, len(list.Items), err)
		case code != http.StatusOK && w.Body.String() != fmt.Sprintf("the %d pods of this node take more than %d bytes\n", n, model.MaxNodeAnswerBytes):
			t.Errorf("%d pods: %s", n, w.Body)
		}
	}
}
