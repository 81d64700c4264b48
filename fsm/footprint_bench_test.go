package fsm

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkFootprint says what a node and a pod cost a server: bytes of heap in a
// state that was restored, bytes of a snapshot, and bytes of the log. The figures
// are each one's own: what the state before held is taken off.
func BenchmarkFootprint(b *testing.B) {
	const nodes, pods = 5000, 50_000
	bound := func(s *benchState) {
		for i := range pods / batch {
			s.applyEntry(s.admit(i*batch, batch, nil))
			s.applyEntry(s.bindAll(i*batch, batch, nodes))
			s.applyEntry(s.running(i*batch, batch, nodes))
		}
	}
	waiting := func(change func(p *corev1.Pod, i int)) func(s *benchState) {
		return func(s *benchState) {
			for i := range pods / batch {
				s.applyEntry(s.admit(i*batch, batch, change))
			}
		}
	}
	own := func(p *corev1.Pod, i int) {
		p.Labels = map[string]string{"app": fmt.Sprint("web-", i)}
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": *apiresource.NewMilliQuantity(int64(100+i), apiresource.DecimalSI)}
	}
	for _, tt := range []struct {
		name  string
		nodes int
		add   func(s *benchState)
		n     int
	}{
		{"node", 1, func(s *benchState) { s.addNodes(1, nodes) }, nodes},
		{"bound-pod", nodes, bound, pods},
		{"waiting-pod", nodes, waiting(nil), pods},
		{"waiting-pod-of-its-own-shape", nodes, waiting(own), pods},
	} {
		b.Run(tt.name, func(b *testing.B) {
			for b.Loop() {
				s := newBenchState(b, tt.nodes)
				heap, snapshot := s.footprint()
				before := s.logBytes
				tt.add(s)
				after, larger := s.footprint()
				b.ReportMetric(float64(after-heap)/float64(tt.n), "heap-B/each")
				b.ReportMetric(float64(larger-snapshot)/float64(tt.n), "snapshot-B/each")
				b.ReportMetric(float64(s.logBytes-before)/float64(tt.n), "log-B/each")
			}
		})
	}
}

// footprint is the heap of a state that is restored from a snapshot, and the
// snapshot's size.
func (s *benchState) footprint() (heap, snapshot int) {
	var buf bytes.Buffer
	if err := s.View().Write(&buf); err != nil {
		s.b.Fatal(err)
	}
	before := liveBytes()
	restored := NewState()
	if err := restored.Restore(bytes.NewReader(buf.Bytes())); err != nil {
		s.b.Fatal(err)
	}
	heap = liveBytes() - before
	runtime.KeepAlive(restored)
	return heap, buf.Len()
}

// addNodes makes nodes as workers register them.
func (s *benchState) addNodes(first, n int) {
	for done := 0; done < n; done += batch {
		var cs []Command
		for i := range min(batch, n-done) {
			node := benchNodeObject(first + done + i)
			node.Labels = map[string]string{
				"kubernetes.io/hostname": node.Name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
				"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r", "node.kubernetes.io/instance-type": "large",
			}
			for _, c := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
				node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
					Type: c, Status: corev1.ConditionTrue, Reason: "AsItIs", Message: "the worker says so", LastHeartbeatTime: metav1.NewTime(worldStart)})
			}
			for i := range 20 {
				image := fmt.Sprintf("registry.example.com/team/image-%d:1", i)
				node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{image}, SizeBytes: 1 << 28})
			}
			cs = append(cs, &PutNode{Create: true, Node: NodeWire{Object: node}})
		}
		s.apply(cs...)
	}
}

// running has workers report their pods as running and ready.
func (s *benchState) running(first, n, nodes int) []byte {
	cs := make([]Command, n)
	for i := range cs {
		pod := benchPod(first + i)
		cs[i] = &ReportPods{Node: benchNode((first + i) % nodes), Reports: []PodReport{{
			Key: PodKey(pod.Namespace, pod.Name), UID: string(pod.UID), Status: PodStatusWire{Object: runningStatus()}}}}
	}
	return s.entry(cs...)
}
