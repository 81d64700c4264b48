package berthv1_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/berth-dev/berth/api/berthv1"
)

func ptr[T any](v T) *T { return &v }

func TestSchemeRoundTrip(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := berthv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := berthv1.AddInternalToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	codec := serializer.NewCodecFactory(scheme).LegacyCodec(berthv1.GroupVersion)
	in := &berthv1.Preemption{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-7"},
		Status: berthv1.PreemptionStatus{
			Preemptor: berthv1.PodReference{Namespace: "default", Name: "web", Priority: 1000},
			Node:      "n1",
			Victims:   []berthv1.Victim{{Namespace: "default", Name: "batch", Priority: 1}},
			Revision:  7,
		},
	}
	data, err := runtime.Encode(codec, in)
	if err != nil {
		t.Fatal(err)
	}
	out, err := runtime.Decode(codec, data)
	if err != nil {
		t.Fatalf("decoding %s: %v", data, err)
	}
	want := in.DeepCopy()
	want.SetGroupVersionKind(schema.GroupVersionKind{})
	got := out.(*berthv1.Preemption).DeepCopy()
	got.SetGroupVersionKind(schema.GroupVersionKind{})
	if !reflect.DeepEqual(want, got) {
		t.Errorf("want %+v\n got %+v", want, got)
	}
}

// Every definition must resolve every reference that is ours, or `kubectl
// explain` stops half-way.
func TestOpenAPIDefinitionsAreComplete(t *testing.T) {
	var refs []string
	defs := berthv1.GetOpenAPIDefinitions(func(path string) spec.Ref {
		refs = append(refs, path)
		return spec.MustCreateRef("#/definitions/" + path)
	})
	for _, ref := range refs {
		if strings.Contains(ref, "/") {
			t.Errorf("reference %q is a Go path, not a published model name", ref)
		}
		if _, ok := defs[ref]; !ok && strings.HasPrefix(ref, "dev.berth.") {
			t.Errorf("reference to undefined model %q", ref)
		}
	}
	if len(refs) == 0 {
		t.Error("no references: the definitions were not generated")
	}
}

func TestDefaultIsValid(t *testing.T) {
	c := berthv1.Default()
	if errs := c.Validate(); len(errs) != 0 {
		t.Errorf("default configuration is refused: %v", errs.ToAggregate())
	}
	spec := reflect.ValueOf(c.Spec)
	for i := range spec.NumField() {
		if f := spec.Field(i); f.IsZero() {
			t.Errorf("SetDefaults left %s empty", spec.Type().Field(i).Name)
		}
	}
}

func TestSetDefaultsKeepsZero(t *testing.T) {
	var c berthv1.SchedulerConfiguration
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"cluster"},"spec":{"preemption":{"enabled":false},"podMaxBackoffSeconds":0,"eventLimit":0,"systemClasses":{}}}`), &c); err != nil {
		t.Fatal(err)
	}
	c.SetDefaults()
	if errs := c.Validate(); len(errs) != 0 {
		t.Errorf("refused: %v", errs.ToAggregate())
	}
	if *c.Spec.Preemption.Enabled || *c.Spec.PodMaxBackoffSeconds != 0 || *c.Spec.EventLimit != 0 || len(c.Spec.SystemClasses.Groups) != 0 {
		t.Errorf("a zero that was set became a default: %+v", c.Spec)
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*berthv1.SchedulerConfiguration)
		want   string
	}{
		{"name", func(c *berthv1.SchedulerConfiguration) { c.Name = "other" },
			`metadata.name: Invalid value: "other": the only scheduler configuration is named "cluster"`},
		{"queue", func(c *berthv1.SchedulerConfiguration) { c.Spec.Queue = "lifo" },
			`spec.queue: Unsupported value: "lifo": supported values: "fifo", "priority"`},
		{"no first wait", func(c *berthv1.SchedulerConfiguration) { c.Spec.PodInitialBackoffSeconds = ptr(int32(0)) },
			`spec.podInitialBackoffSeconds: Invalid value: 0: must be between 1 and 86400`},
		{"maximum below first wait", func(c *berthv1.SchedulerConfiguration) {
			c.Spec.PodInitialBackoffSeconds, c.Spec.PodMaxBackoffSeconds = ptr(int32(5)), ptr(int32(2))
		}, `spec.podMaxBackoffSeconds: Invalid value: 2: must be 0 or not less than podInitialBackoffSeconds`},
		{"negative events", func(c *berthv1.SchedulerConfiguration) { c.Spec.EventLimit = ptr(int32(-1)) },
			`spec.eventLimit: Invalid value: -1: must be between 0 and 1000000`},
		{"same user twice", func(c *berthv1.SchedulerConfiguration) { c.Spec.SystemClasses.Users = []string{"a", "a"} },
			`spec.systemClasses.users[1]: Duplicate value: "a"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := berthv1.Default()
			tt.change(c)
			errs := c.Validate()
			if len(errs) != 1 || errs[0].Error() != tt.want {
				t.Errorf("want %s\n got %v", tt.want, errs)
			}
		})
	}
}
