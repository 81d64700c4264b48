package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/fsm"
)

// What a strategic merge merges upstream's types say.
func TestListsThatAreMerged(t *testing.T) {
	for name, c := range map[string]struct {
		of   any
		text string
		want map[string]mergeList
	}{
		"a pod": {corev1.Pod{}, `{"metadata":{"finalizers":["a","b"],"$setElementOrder/finalizers":["a"]},"spec":{
			"containers":[{"name":"a","args":["x","y"],"env":[{"name":"A"}]},{"name":"b","Env":[{"name":"A"},{"name":"B"}]}],
			"volumes":[{"name":"v","configMap":{"items":[{"key":"a"}]}}]},"status":{"conditions":[{"type":"Ready"}]}}`, map[string]mergeList{
			"metadata.finalizers": {"metadata.finalizers", 2, 2, 3, 5},
			"spec.containers":     {"spec.containers", 1, 2, 2, 4},
			"spec.containers.env": {"spec.containers.env", 2, 2, 3, 5},
			"spec.volumes":        {"spec.volumes", 1, 1, 1, 1},
			"status.conditions":   {"status.conditions", 1, 1, 1, 1},
		}},
		"a role":            {rbacv1.Role{}, `{"rules":[{"verbs":["get"]}],"$setElementOrder/rules":[{}]}`, map[string]mergeList{"rules": {"rules", 1, 1, 1, 1}}},
		"what nobody knows": {corev1.ConfigMap{}, `{"a":["b"],"data":{"c":["d"]},"metadata":{"labels":["x"]}}`, map[string]mergeList{}},
	} {
		var object map[string]any
		if err := json.Unmarshal([]byte(c.text), &object); err != nil {
			t.Fatal(err)
		}
		got := map[string]mergeList{}
		for key, l := range listsOf(object, reflect.TypeOf(c.of)) {
			l.way = strings.ToLower(l.way)
			got[key] = *l
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A strategic merge compares all entries of a list with each other, if it merges it.
func TestLongListsInStrategicMerges(t *testing.T) {
	s := start(t, newDouble(t), nil)
	maps := s.client(t).CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", Finalizers: []string{"x.y/z"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := func(form types.PatchType, body string) error {
		_, err := maps.Patch(t.Context(), "m", form, []byte(body), metav1.PatchOptions{})
		return err
	}
	list := func(n int) string { return `["a.b/` + strings.Join(many(n, "%d"), `","a.b/`) + `"]` }
	fields := []string{"finalizers", "$setElementOrder/finalizers", "$deleteFromPrimitiveList/finalizers"}
	for _, field := range fields {
		wantStatus(t, patch(types.StrategicMergePatchType, fmt.Sprintf(`{"metadata":{%q:%s}}`, field, list(maxMergeEntries+1))), 413,
			"metadata.finalizers has 2049 entries; a list that a strategic merge merges may have 2048: send a merge patch")
	}
	wantStatus(t, patch(types.StrategicMergePatchType, `{"metadata":{"finalizers":`+list(maxMergeEntries)+`}}`), 422, "metadata.finalizers: Too many: 2049: must have at most 64")
	// Of kinds of Berth's own, and of what scales, all that is merged is in the metadata.
	for _, path := range []string{"/apis/berth.dev/v1/schedulerconfigurations/default", "/apis/apps/v1/namespaces/default/deployments/d/scale"} {
		err := s.client(t).CoreV1().RESTClient().Patch(types.StrategicMergePatchType).AbsPath(path).Body([]byte(`{"metadata":{"finalizers":` + list(maxMergeEntries+1) + `}}`)).Do(t.Context()).Error()
		wantStatus(t, err, 413, "metadata.finalizers has 2049 entries")
	}
	together := fmt.Sprintf(`{"metadata":{%[1]q:%[4]s,%[2]q:%[4]s,%[3]q:%[4]s}}`, fields[0], fields[1], fields[2], list(maxMergeEntries))
	wantStatus(t, patch(types.StrategicMergePatchType, together), 413, "too long together")
	wantStatus(t, patch(types.MergePatchType, `{"metadata":{"finalizers":`+list(maxMergeEntries+1)+`}}`), 422, "metadata.finalizers: Too many: 2049: must have at most 64")

	roles := s.client(t).RbacV1().Roles("default")
	if _, err := roles.Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rules, err := json.Marshal(rbacv1.Role{Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: many(maxMergeEntries*2, "p%d")}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := roles.Patch(t.Context(), "r", types.StrategicMergePatchType, rules, metav1.PatchOptions{}); err != nil {
		t.Errorf("a list that is not merged: %v", err)
	}
}

// A few bytes merged into a list of thousands take seconds.
func TestStrategicMergesIntoLongLists(t *testing.T) {
	s := start(t, newDouble(t), nil)
	deployments := s.client(t).AppsV1().Deployments("default")
	create := func(name string, n int) {
		t.Helper()
		labels := map[string]string{"a": "b"}
		spec := testPod("p").Spec
		for i := range n {
			spec.Containers[0].Env = append(spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("E%d", i)})
		}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		}}
		if _, err := deployments.Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch := func(name string, form types.PatchType, body string) error {
		_, err := deployments.Patch(t.Context(), name, form, []byte(body), metav1.PatchOptions{})
		return err
	}
	env := func(times int) string {
		one := `{"name":"main","env":[{"name":"X"}]}`
		return `{"spec":{"template":{"spec":{"containers":[` + strings.TrimSuffix(strings.Repeat(one+",", times), ",") + `]}}}}`
	}
	create("long", maxMergeEntries+1)
	create("short", 1000)
	wantStatus(t, patch("long", types.StrategicMergePatchType, env(1)), 422,
		"spec.template.spec.containers.env: Forbidden: it has 2049 entries as it is stored; a list that a strategic merge merges may have 2048: send a merge patch")
	wantStatus(t, patch("short", types.StrategicMergePatchType, env(20)), 422, "and those that are stored, are too long together")
	for name, c := range map[string]struct {
		of   string
		form types.PatchType
		body string
	}{
		"another field":        {"long", types.StrategicMergePatchType, `{"metadata":{"labels":{"c":"d"},"finalizers":["e.f/g"]}}`},
		"with a merge patch":   {"long", types.MergePatchType, env(1)},
		"with few":             {"short", types.StrategicMergePatchType, env(1)},
		"the number of copies": {"long", types.StrategicMergePatchType, `{"spec":{"replicas":2}}`},
	} {
		if err := patch(c.of, c.form, c.body); err != nil && !strings.Contains(err.Error(), "spec.template.spec.containers[0].image") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a patch makes has the bounds of what is sent.
func TestPatchesMakeNothingTooLarge(t *testing.T) {
	d := newDouble(t)
	s := start(t, d, nil)
	define(t, s, definition("gauges", "Gauge", apiextensionsv1.NamespaceScoped))
	maps := s.client(t).CoreV1().ConfigMaps("default")
	full := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "full"}, Data: numbered(maxEntries)}
	if _, err := maps.Create(t.Context(), full, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := func(name string, form types.PatchType, body string) error {
		options := metav1.PatchOptions{}
		if form == types.ApplyYAMLPatchType {
			options.FieldManager = "test"
		}
		_, err := maps.Patch(t.Context(), name, form, []byte(body), options)
		return err
	}
	const told = "patch: Forbidden: what it makes of the object is too much: data has more than 16384 entries"
	more := map[types.PatchType]string{
		types.MergePatchType:          `{"data":{"more":"x"}}`,
		types.StrategicMergePatchType: `{"data":{"more":"x"}}`,
		types.JSONPatchType:           `[{"op":"add","path":"/data/more","value":"x"}]`,
		types.ApplyYAMLPatchType:      `{"apiVersion":"v1","kind":"ConfigMap","data":{"more":"x"}}`,
	}
	for form, body := range more {
		wantStatus(t, patch("full", form, body), 422, told)
		if err := patch("full", form, strings.Replace(body, "more", "key-1", 1)); err != nil && form != types.ApplyYAMLPatchType {
			t.Errorf("what makes it no larger: %v", err)
		}
	}
	// It comes back as it is, with the fields that are managed.
	stored, err := maps.Get(t.Context(), "full", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Update(t.Context(), stored, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	custom := s.client(t).CoreV1().RESTClient()
	const gauges = "/apis/custom.example.com/v1beta1/namespaces/default/gauges"
	body := `{"apiVersion":"custom.example.com/v1beta1","kind":"Gauge","metadata":{"name":"g","annotations":{}}}`
	if err := custom.Post().AbsPath(gauges).Body([]byte(body)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	half := func(from int) []byte {
		labels := map[string]string{}
		for i := range maxEntries/2 + 1 {
			labels[fmt.Sprintf("a%d", from+i)] = ""
		}
		b, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": labels}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if err := custom.Patch(types.MergePatchType).AbsPath(gauges, "g").Body(half(0)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, custom.Patch(types.MergePatchType).AbsPath(gauges, "g").Body(half(maxEntries)).Do(t.Context()).Error(), 422,
		"metadata.annotations has more than 16384 entries")
}

// What is older than a bound can be changed, and come to its end, in whatever form it is sent.
func TestObjectsOlderThanTheirShape(t *testing.T) {
	d := newDouble(t)
	s := start(t, d, nil)
	for name, form := range map[string]string{"old-json": "application/json", "old-protobuf": "application/vnd.kubernetes.protobuf"} {
		config := s.config(t, "root", access.Masters)
		config.ContentType = form
		maps := clientFor(t, config).CoreV1().ConfigMaps("default")
		old := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Finalizers: []string{"a.b/c"}}, Data: numbered(maxEntries + 10)}
		raw, err := old.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		d.must(t, &fsm.PutObject{Resource: "configmaps", Create: true, Raw: raw})
		get := func() *corev1.ConfigMap {
			t.Helper()
			m, err := maps.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		update := func(change func(m *corev1.ConfigMap)) error {
			m := get()
			change(m)
			_, err := maps.Update(t.Context(), m, metav1.UpdateOptions{})
			return err
		}
		patch := func(body string) error {
			_, err := maps.Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
			return err
		}
		const told = "data has more than 16384 entries"
		refused := map[bool]int32{true: 413, false: 400}[form == "application/json"]
		wantStatus(t, update(func(m *corev1.ConfigMap) { m.Data["more"] = "x" }), refused, told)
		wantStatus(t, patch(`{"data":{"more":"x"}}`), 422, told)
		if err := update(func(m *corev1.ConfigMap) {
			delete(m.Data, "key-1")
			m.Labels = map[string]string{"a": "b"}
		}); err != nil {
			t.Error(err)
		}
		if err := patch(`{"data":{"key-2":null},"metadata":{"labels":{"a":"c"}}}`); err != nil {
			t.Error(err)
		}
		other := get()
		other.Name, other.ResourceVersion = "new", ""
		_, err = maps.Create(t.Context(), other, metav1.CreateOptions{})
		wantStatus(t, err, refused, told)
		if err := update(func(m *corev1.ConfigMap) { m.Finalizers = nil }); err != nil {
			t.Error(err)
		}
		if m := get(); len(m.Finalizers) != 0 || len(m.Data) != maxEntries+8 || m.Labels["a"] != "c" {
			t.Errorf("it has %d entries, finalizers %q, labels %v", len(m.Data), m.Finalizers, m.Labels)
		}
	}
}
