package fsm

import "strings"

// A preemption that is refused over one of its victims says which. Who waits for room may not know him: what is shown of such a text
// elsewhere goes through ShownRefusal. The text itself is in the state, and what it says is a rule of the log.

const (
	victimWord    = "victim "
	protectedWord = "is protected: "
	priorityWord  = "has priority "
	notBelowWord  = ", which is not below "
)

// refusedVictim is why a preemption was refused over a victim.
func refusedVictim(key, why string) string { return victimWord + key + " " + why }

// ShownRefusal is why a decision was refused, as it is shown to who may know the pods of some namespaces (PR20): a victim in another one
// has no name and no priority, and a budget that protects it no name and no numbers.
func ShownRefusal(why string, mayKnow func(namespace string) bool) string {
	rest, ok := strings.CutPrefix(why, victimWord)
	if !ok {
		return why
	}
	key, rest, _ := strings.Cut(rest, " ")
	if namespace, _, _ := strings.Cut(key, "/"); mayKnow(namespace) {
		return why
	}
	if strings.HasPrefix(rest, protectedWord) {
		rest = "is protected by a disruption budget"
	} else if _, below, ok := strings.Cut(rest, notBelowWord); ok && strings.HasPrefix(rest, priorityWord) {
		rest = "has a priority that is not below " + below
	} else if strings.HasPrefix(rest, priorityWord) { // the text was cut off
		rest = "has a priority that is not below the pod's own"
	}
	return strings.TrimSpace("a victim in another namespace " + rest)
}
