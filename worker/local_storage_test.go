package worker

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/model"
)

// A pod whose files take longer to be measured than lies between two measurements is measured nevertheless, by one call at a time.
func TestMeasurementTakesLong(t *testing.T) {
	pod := testPod("many")
	if err := yaml.UnmarshalStrict([]byte("volumes: [{name: some, emptyDir: {sizeLimit: 2Mi}}]"), &pod.Spec); err != nil {
		t.Fatal(err)
	}
	var classes model.Classes
	p := newPodState(pod, classes.Of(pod), &podEnv{}, epoch)
	p.stepMeasure(epoch)
	due := epoch.Add(measureInterval)
	p.stepMeasure(due)
	if len(p.out) != 1 || p.out[0].Kind != ActionMeasure || p.out[0].Timeout < 10*measureInterval {
		t.Fatalf("got %+v", p.out)
	}
	p.stepMeasure(due.Add(measureInterval))
	if len(p.out) != 1 {
		t.Errorf("beside it: %+v", p.out[1:])
	}
}

// What a pod may hold of its node's disk, and which of its limits is told first.
func TestLocalUseExceeds(t *testing.T) {
	const mib = 1 << 20
	limited := `volumes: [{name: some, emptyDir: {sizeLimit: 2Mi}}, {name: any, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]
initContainers: [{name: init}]
containers: [{name: a, resources: {limits: {ephemeral-storage: 4Mi}}}, {name: b, resources: {limits: {ephemeral-storage: 6Mi}}}]`
	for name, test := range map[string]struct {
		spec string
		use  localUse
		want string
	}{
		"as much as it may":  {limited, localUse{volumes: map[string]int64{"some": 2 * mib}, objects: mib, containers: map[string]int64{"a": 4 * mib, "b": 3 * mib}}, ""},
		"a volume":           {limited, localUse{volumes: map[string]int64{"some": 2*mib + 1}}, `Usage of EmptyDir volume "some" exceeds the limit "2Mi".`},
		"a volume not there": {limited, localUse{}, ""},
		"the pod, by a volume without limit": {limited, localUse{volumes: map[string]int64{"any": 10*mib + 1}},
			"Pod ephemeral local storage usage exceeds the total limit of containers 10Mi."},
		"the pod, by its objects and an init container": {limited, localUse{objects: 5 * mib, containers: map[string]int64{"init": 5*mib + 1}},
			"Pod ephemeral local storage usage exceeds the total limit of containers 10Mi."},
		"the pod before its container": {limited, localUse{containers: map[string]int64{"a": 11 * mib}},
			"Pod ephemeral local storage usage exceeds the total limit of containers 10Mi."},
		"a container":    {limited, localUse{containers: map[string]int64{"a": 4*mib + 1, "b": mib}}, `Container a exceeded its local ephemeral storage limit "4Mi".`},
		"without limits": {"containers: [{name: a}]", localUse{containers: map[string]int64{"a": 1 << 40}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			if err := yaml.UnmarshalStrict([]byte(test.spec), &pod.Spec); err != nil {
				t.Fatal(err)
			}
			got := ""
			if over := test.use.exceeds(pod); over != nil {
				got = over.message
			}
			if got != test.want {
				t.Errorf("it says %q, want %q", got, test.want)
			}
			if want := name != "without limits"; limitsDisk(pod) != want {
				t.Errorf("it is measured: %v", !want)
			}
		})
	}
}
