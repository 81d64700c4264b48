package berthv1

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Defaults of SchedulerConfigurationSpec.
const (
	DefaultPodInitialBackoffSeconds = 1
	DefaultPodMaxBackoffSeconds     = 10
	DefaultNominationSlackSeconds   = 10
	DefaultNodeGraceSeconds         = 50
	DefaultEventLimit               = 20000
	DefaultSystemClassesGroup       = "system:masters"
	DefaultMaxOtherNodes            = 3
	DefaultSearchLimit              = 1000
	DefaultHardPodAffinityWeight    = 1
	DefaultReservationAfterSeconds  = 300
)

// maxSeconds bounds every duration: a day. Longer ones are mistakes of unit.
const maxSeconds = 24 * 60 * 60

// maxEventLimit bounds what events may cost in memory (about 1 KB each).
const maxEventLimit = 1_000_000

// Bounds of what costs time or memory, or makes no sense beyond.
const (
	maxProfiles              = 16
	maxWeight                = 1000
	maxHardPodAffinityWeight = 100
	maxDefaultConstraints    = 8
	maxOtherNodes            = 16
	maxSearchLimit           = 1_000_000
)

// Default returns the configuration of a cluster in which nobody set anything.
func Default() *SchedulerConfiguration {
	c := &SchedulerConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "SchedulerConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: SchedulerConfigurationName},
	}
	c.SetDefaults()
	return c
}

// SetDefaults fills in every absent field; afterwards no pointer of the spec is
// nil.
func (c *SchedulerConfiguration) SetDefaults() {
	s := &c.Spec
	setDefault(&s.Preemption.Enabled, true)
	if s.Queue == "" {
		s.Queue = QueueByPriority
	}
	setDefault(&s.PodInitialBackoffSeconds, DefaultPodInitialBackoffSeconds)
	setDefault(&s.PodMaxBackoffSeconds, DefaultPodMaxBackoffSeconds)
	setDefault(&s.NominationSlackSeconds, DefaultNominationSlackSeconds)
	setDefault(&s.SystemClasses, SystemClasses{Groups: []string{DefaultSystemClassesGroup}})
	setDefault(&s.NodeGraceSeconds, DefaultNodeGraceSeconds)
	setDefault(&s.EventLimit, DefaultEventLimit)
	if s.Preemption.Budgets == "" {
		s.Preemption.Budgets = BudgetsBestEffort
	}
	if s.Preemption.SystemClassBudgets == "" {
		s.Preemption.SystemClassBudgets = BudgetsBestEffort
	}
	setDefault(&s.Preemption.MaxOtherNodes, DefaultMaxOtherNodes)
	setDefault(&s.Preemption.SearchLimit, DefaultSearchLimit)
	if len(s.Profiles) == 0 {
		s.Profiles = []SchedulerProfile{{SchedulerName: corev1.DefaultSchedulerName}}
	}
	if s.PodTopologySpread.DefaultingType == "" {
		s.PodTopologySpread.DefaultingType = SpreadSystem
	}
	setDefault(&s.HardPodAffinityWeight, DefaultHardPodAffinityWeight)
	setDefault(&s.Aging.SecondsPerPoint, 0)
	setDefault(&s.Reservation.Enabled, true)
	setDefault(&s.Reservation.AfterSeconds, DefaultReservationAfterSeconds)
}

func setDefault[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// Validate checks a configuration after SetDefaults.
func (c *SchedulerConfiguration) Validate() field.ErrorList {
	var errs field.ErrorList
	if c.Name != SchedulerConfigurationName {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), c.Name,
			fmt.Sprintf("the only scheduler configuration is named %q", SchedulerConfigurationName)))
	}
	spec := field.NewPath("spec")
	switch c.Spec.Queue {
	case "", QueueByPriority, QueueFIFO:
	default:
		errs = append(errs, field.NotSupported(spec.Child("queue"), c.Spec.Queue, []QueueOrder{QueueFIFO, QueueByPriority}))
	}
	inRange := func(name string, v *int32, least, most int32) {
		errs = append(errs, validateRange(spec.Child(name), v, least, most)...)
	}
	inRange("podInitialBackoffSeconds", c.Spec.PodInitialBackoffSeconds, 1, maxSeconds)
	inRange("podMaxBackoffSeconds", c.Spec.PodMaxBackoffSeconds, 0, maxSeconds)
	inRange("nominationSlackSeconds", c.Spec.NominationSlackSeconds, 1, maxSeconds)
	inRange("nodeGraceSeconds", c.Spec.NodeGraceSeconds, 1, maxSeconds)
	inRange("eventLimit", c.Spec.EventLimit, 0, maxEventLimit)
	// QU5: a maximum of 0 switches the wait off; any other maximum below the
	// first wait could never be reached.
	if first, most := c.Spec.PodInitialBackoffSeconds, c.Spec.PodMaxBackoffSeconds; first != nil && most != nil && *most != 0 && *most < *first {
		errs = append(errs, field.Invalid(spec.Child("podMaxBackoffSeconds"), *most, "must be 0 or not less than podInitialBackoffSeconds"))
	}
	if sc := c.Spec.SystemClasses; sc != nil {
		errs = append(errs, validateNames(spec.Child("systemClasses", "users"), sc.Users)...)
		errs = append(errs, validateNames(spec.Child("systemClasses", "groups"), sc.Groups)...)
	}
	inRange("hardPodAffinityWeight", c.Spec.HardPodAffinityWeight, 0, maxHardPodAffinityWeight)
	errs = append(errs, validatePreemption(spec.Child("preemption"), &c.Spec.Preemption)...)
	errs = append(errs, validateProfiles(spec.Child("profiles"), c.Spec.Profiles)...)
	errs = append(errs, validateSpread(spec.Child("podTopologySpread"), &c.Spec.PodTopologySpread)...)
	errs = append(errs, validateRange(spec.Child("aging", "secondsPerPoint"), c.Spec.Aging.SecondsPerPoint, 0, maxSeconds)...)
	errs = append(errs, validateRange(spec.Child("reservation", "afterSeconds"), c.Spec.Reservation.AfterSeconds, 1, maxSeconds)...)
	return errs
}

func validateRange(path *field.Path, v *int32, least, most int32) field.ErrorList {
	if v == nil || *v >= least && *v <= most {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *v, fmt.Sprintf("must be between %d and %d", least, most))}
}

func validateNames(path *field.Path, names []string) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, n := range names {
		switch {
		case n == "":
			errs = append(errs, field.Required(path.Index(i), "a name may not be empty"))
		case seen[n]:
			errs = append(errs, field.Duplicate(path.Index(i), n))
		}
		seen[n] = true
	}
	return errs
}
