package berthv1_test

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/yaml"

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

// What docs/configuration.md shows must be a configuration, and valid.
func TestDocumentedConfiguration(t *testing.T) {
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(doc), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	var c berthv1.SchedulerConfiguration
	if err := yaml.UnmarshalStrict([]byte(text), &c); err != nil || !ok {
		t.Fatalf("the example is none: %v", err)
	}
	c.SetDefaults()
	if errs := c.Validate(); len(errs) != 0 {
		t.Error(errs.ToAggregate())
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
	// A configuration stored by a version that knew fewer fields reads as if
	// nobody had set them.
	if want := berthv1.Default().Spec; !reflect.DeepEqual(c.Spec.Profiles, want.Profiles) || c.Spec.Preemption.Budgets != want.Preemption.Budgets ||
		!*c.Spec.Reservation.Enabled || *c.Spec.Aging.SecondsPerPoint != 0 {
		t.Errorf("what was not set has no default: %+v", c.Spec)
	}
	if *c.Spec.Preemption.Enabled || *c.Spec.PodMaxBackoffSeconds != 0 || *c.Spec.EventLimit != 0 || len(c.Spec.SystemClasses.Groups) != 0 {
		t.Errorf("a zero that was set became a default: %+v", c.Spec)
	}
}

func TestValidate(t *testing.T) {
	tests := []invalid{
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
		{"system class budgets", func(c *berthv1.SchedulerConfiguration) { c.Spec.Preemption.SystemClassBudgets = "Hard" },
			`spec.preemption.systemClassBudgets: Unsupported value: "Hard": supported values: "BestEffort", "Strict"`},
		{"budgets", func(c *berthv1.SchedulerConfiguration) { c.Spec.Preemption.Budgets = "Hard" },
			`spec.preemption.budgets: Unsupported value: "Hard": supported values: "BestEffort", "Strict"`},
		{"other nodes", func(c *berthv1.SchedulerConfiguration) { c.Spec.Preemption.MaxOtherNodes = ptr(int32(-1)) },
			`spec.preemption.maxOtherNodes: Invalid value: -1: must be between 0 and 16`},
		{"search", func(c *berthv1.SchedulerConfiguration) { c.Spec.Preemption.SearchLimit = ptr(int32(1_000_001)) },
			`spec.preemption.searchLimit: Invalid value: 1000001: must be between 0 and 1000000`},
		{"hard affinity", func(c *berthv1.SchedulerConfiguration) { c.Spec.HardPodAffinityWeight = ptr(int32(101)) },
			`spec.hardPodAffinityWeight: Invalid value: 101: must be between 0 and 100`},
		{"aging", func(c *berthv1.SchedulerConfiguration) { c.Spec.Aging.SecondsPerPoint = ptr(int32(-1)) },
			`spec.aging.secondsPerPoint: Invalid value: -1: must be between 0 and 86400`},
		{"reservation", func(c *berthv1.SchedulerConfiguration) { c.Spec.Reservation.AfterSeconds = ptr(int32(0)) },
			`spec.reservation.afterSeconds: Invalid value: 0: must be between 1 and 86400`},
	}
	run(t, tests)
}

// profile adds a profile with these plugins to the default one.
func profile(name string, plugins berthv1.ProfilePlugins) func(*berthv1.SchedulerConfiguration) {
	return func(c *berthv1.SchedulerConfiguration) {
		c.Spec.Profiles = append(c.Spec.Profiles, berthv1.SchedulerProfile{SchedulerName: name, Plugins: plugins})
	}
}

func TestValidateProfiles(t *testing.T) {
	run(t, []invalid{
		{"no name", profile("", berthv1.ProfilePlugins{}), `spec.profiles[1].schedulerName: Required value: it is what pods name in spec.schedulerName`},
		{"one name twice", profile("default-scheduler", berthv1.ProfilePlugins{}), `spec.profiles[1].schedulerName: Duplicate value: "default-scheduler"`},
		{"unknown plugin disabled", profile("packed", berthv1.ProfilePlugins{Disabled: []string{"NodePorts"}}),
			`spec.profiles[1].plugins.disabled[0]: Unsupported value: "NodePorts": supported values: "ImageLocality", "InterPodAffinity", "NodeAffinity", "NodeResourcesBalancedAllocation", "NodeResourcesFit", "PodTopologySpread", "TaintToleration"`},
		{"unknown plugin weighed", profile("packed", berthv1.ProfilePlugins{Weights: map[string]int32{"Fit": 2}}),
			`spec.profiles[1].plugins.weights[Fit]: Unsupported value: "Fit": supported values: "ImageLocality", "InterPodAffinity", "NodeAffinity", "NodeResourcesBalancedAllocation", "NodeResourcesFit", "PodTopologySpread", "TaintToleration"`},
		{"negative weight", profile("packed", berthv1.ProfilePlugins{Weights: map[string]int32{"ImageLocality": -1}}),
			`spec.profiles[1].plugins.weights[ImageLocality]: Invalid value: -1: must be between 0 and 1000`},
		{"disabled and weighed", profile("packed", berthv1.ProfilePlugins{Disabled: []string{"ImageLocality"}, Weights: map[string]int32{"ImageLocality": 5}}),
			`spec.profiles[1].plugins.weights[ImageLocality]: Invalid value: 5: the plugin is disabled`},
		{"disabled twice", profile("packed", berthv1.ProfilePlugins{Disabled: []string{"ImageLocality", "ImageLocality"}}),
			`spec.profiles[1].plugins.disabled[1]: Duplicate value: "ImageLocality"`},
		{"too many", func(c *berthv1.SchedulerConfiguration) { c.Spec.Profiles = make([]berthv1.SchedulerProfile, 17) },
			`spec.profiles: Too many: 17: must have at most 16 items`},
	})
}

func TestWeights(t *testing.T) {
	c := berthv1.Default()
	profile("packed", berthv1.ProfilePlugins{Disabled: []string{"ImageLocality"}, Weights: map[string]int32{"NodeAffinity": 7, "TaintToleration": 0}})(c)
	if errs := c.Validate(); len(errs) != 0 {
		t.Fatal(errs.ToAggregate())
	}
	for name, want := range map[string][7]int32{ // in the order of Plugins
		"":                  {1, 2, 2, 1, 1, 2, 3},
		"default-scheduler": {1, 2, 2, 1, 1, 2, 3},
		"packed":            {0, 2, 7, 1, 1, 2, 0},
	} {
		p := c.Spec.Profile(name)
		for i, plugin := range berthv1.Plugins() {
			if got := p.Weight(plugin); got != want[i] {
				t.Errorf("%q weighs %s with %d, want %d", name, plugin, got, want[i])
			}
		}
	}
	if p := c.Spec.Profile("another"); p != nil {
		t.Errorf("another scheduler's pods have the profile %+v", p)
	}
}

// TS12–TS14, and what holds for a pod's own constraints.
func TestValidateDefaultConstraints(t *testing.T) {
	with := func(change func(c *corev1.TopologySpreadConstraint)) func(*berthv1.SchedulerConfiguration) {
		return func(c *berthv1.SchedulerConfiguration) {
			constraint := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.ScheduleAnyway}
			change(&constraint)
			c.Spec.PodTopologySpread = berthv1.PodTopologySpreadConfiguration{
				DefaultingType: berthv1.SpreadList, DefaultConstraints: []corev1.TopologySpreadConstraint{constraint}}
		}
	}
	const at = "spec.podTopologySpread.defaultConstraints[0]"
	run(t, []invalid{
		{"kind", func(c *berthv1.SchedulerConfiguration) { c.Spec.PodTopologySpread.DefaultingType = "None" },
			`spec.podTopologySpread.defaultingType: Unsupported value: "None": supported values: "List", "System"`},
		{"list beside System", func(c *berthv1.SchedulerConfiguration) {
			with(func(*corev1.TopologySpreadConstraint) {})(c)
			c.Spec.PodTopologySpread.DefaultingType = berthv1.SpreadSystem
		}, `spec.podTopologySpread.defaultingType: Invalid value: "System": the system's constraints are used; with defaultConstraints it has to be List`},
		{"skew", with(func(c *corev1.TopologySpreadConstraint) { c.MaxSkew = 0 }), at + `.maxSkew: Invalid value: 0: must be greater than zero`},
		{"no key", with(func(c *corev1.TopologySpreadConstraint) { c.TopologyKey = "" }), at + `.topologyKey: Required value: can not be empty`},
		{"bad key", with(func(c *corev1.TopologySpreadConstraint) { c.TopologyKey = "a b" }), at + `.topologyKey: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`},
		{"when", with(func(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = "" }),
			at + `.whenUnsatisfiable: Unsupported value: "": supported values: "DoNotSchedule", "ScheduleAnyway"`},
		{"selector", with(func(c *corev1.TopologySpreadConstraint) { c.LabelSelector = &metav1.LabelSelector{} }),
			at + `.labelSelector: Forbidden: a default constraint has none: it is deduced for each pod`},
		{"label keys", with(func(c *corev1.TopologySpreadConstraint) { c.MatchLabelKeys = []string{"a"} }),
			at + `.matchLabelKeys: Forbidden: a default constraint has none: its selector is deduced for each pod`},
		{"domains of a soft one", with(func(c *corev1.TopologySpreadConstraint) { c.MinDomains = ptr(int32(1)) }),
			at + `.minDomains: Invalid value: 1: can only be used with whenUnsatisfiable: DoNotSchedule`},
		{"policy", with(func(c *corev1.TopologySpreadConstraint) { c.NodeTaintsPolicy = ptr(corev1.NodeInclusionPolicy("No")) }),
			at + `.nodeTaintsPolicy: Unsupported value: "No": supported values: "Honor", "Ignore"`},
		{"one twice", func(c *berthv1.SchedulerConfiguration) {
			with(func(*corev1.TopologySpreadConstraint) {})(c)
			c.Spec.PodTopologySpread.DefaultConstraints = append(c.Spec.PodTopologySpread.DefaultConstraints, c.Spec.PodTopologySpread.DefaultConstraints[0])
		}, `spec.podTopologySpread.defaultConstraints[1]: Duplicate value: "{zone, ScheduleAnyway}"`},
	})
}

type invalid struct {
	name   string
	change func(*berthv1.SchedulerConfiguration)
	want   string
}

// run changes the default configuration, each time in a way that is refused.
func run(t *testing.T, tests []invalid) {
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

// arguments adds a profile with one plugin's arguments to the default one.
func arguments(plugin string, args berthv1.PluginArguments) func(*berthv1.SchedulerConfiguration) {
	return func(c *berthv1.SchedulerConfiguration) {
		c.Spec.Profiles = append(c.Spec.Profiles, berthv1.SchedulerProfile{
			SchedulerName: "packed", PluginConfig: []berthv1.PluginConfig{{Name: plugin, Args: args}}})
	}
}

func TestValidatePluginArguments(t *testing.T) {
	strategy := func(s berthv1.ScoringStrategy) func(*berthv1.SchedulerConfiguration) {
		return arguments("NodeResourcesFit", berthv1.PluginArguments{ScoringStrategy: &s})
	}
	shape := func(points ...berthv1.UtilizationShapePoint) func(*berthv1.SchedulerConfiguration) {
		return strategy(berthv1.ScoringStrategy{Type: "RequestedToCapacityRatio", RequestedToCapacityRatio: &berthv1.RequestedToCapacityRatio{Shape: points}})
	}
	const at = "spec.profiles[1].pluginConfig[0]."
	run(t, []invalid{
		{"a plugin without", arguments("ImageLocality", berthv1.PluginArguments{}), at + `name: Invalid value: "ImageLocality": it has no arguments`},
		{"one with its arguments elsewhere", arguments("InterPodAffinity", berthv1.PluginArguments{}),
			at + `name: Invalid value: "InterPodAffinity": its argument is spec.hardPodAffinityWeight, for all profiles`},
		{"no plugin", arguments("Fit", berthv1.PluginArguments{}),
			at + `name: Unsupported value: "Fit": supported values: "NodeAffinity", "NodeResourcesFit"`},
		{"ignored resources", arguments("NodeResourcesFit", berthv1.PluginArguments{IgnoredResources: []string{"example.com/x"}}),
			at + `args.ignoredResources: Forbidden: every resource that a pod requests has to be there`},
		{"another's argument", arguments("NodeAffinity", berthv1.PluginArguments{ScoringStrategy: &berthv1.ScoringStrategy{}}),
			at + `args: Forbidden: only addedAffinity is an argument of NodeAffinity`},
		{"type", strategy(berthv1.ScoringStrategy{Type: "Random"}),
			at + `args.scoringStrategy.type: Unsupported value: "Random": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"`},
		{"pods", strategy(berthv1.ScoringStrategy{Resources: []berthv1.ResourceWeight{{Name: "pods"}}}),
			at + `args.scoringStrategy.resources[0].name: Invalid value: "pods": the number of pods is not scored`},
		{"weight", strategy(berthv1.ScoringStrategy{Resources: []berthv1.ResourceWeight{{Name: "cpu", Weight: 101}}}),
			at + `args.scoringStrategy.resources[0].weight: Invalid value: 101: must be between 1 and 100`},
		{"no shape", shape(), at + `args.scoringStrategy.requestedToCapacityRatio.shape: Required value: at least one point must be there`},
		{"shape that falls back", shape(berthv1.UtilizationShapePoint{Utilization: 50}, berthv1.UtilizationShapePoint{Utilization: 50, Score: 1}),
			at + `args.scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 50: must be above that of the point before`},
		{"no terms", arguments("NodeAffinity", berthv1.PluginArguments{AddedAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}),
			at + `args.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term`},
	})
}
