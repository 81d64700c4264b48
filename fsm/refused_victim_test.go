package fsm

import (
	"strings"
	"testing"
)

func TestShownRefusal(t *testing.T) {
	ours := func(namespace string) bool { return namespace == "default" }
	for why, want := range map[string]string{
		"":                "",
		"the pod is gone": "the pod is gone",
		refusedVictim("default/web", "is on no node"):                                                 "victim default/web is on no node",
		refusedVictim("secret/boss", "is on no node"):                                                 "a victim in another namespace is on no node",
		refusedVictim("default.x/boss", "has priority 5, which is not below 3"):                       "a victim in another namespace has a priority that is not below 3",
		refusedVictim("default/web", "has priority 5, which is not below 3"):                          "victim default/web has priority 5, which is not below 3",
		refusedVictim("secret/boss", "has priority 512345, whi"):                                      "a victim in another namespace has a priority that is not below the pod's own",
		refusedVictim("secret/boss", protectedWord+"the disruption budget hush needs 2 healthy pods"): "a victim in another namespace is protected by a disruption budget",
		refusedVictim("default/web", protectedWord+"the disruption budget web needs 2 healthy pods"):  "victim default/web is protected: the disruption budget web needs 2 healthy pods",
		"victim secret/boss-that-was-cut-o":                                                           "a victim in another namespace",
		"node n1 is gone":                                                                             "node n1 is gone",
	} {
		if got := ShownRefusal(why, ours); got != want || strings.Contains(got, "boss") || strings.Contains(got, "hush") {
			t.Errorf("%q is shown as %q", why, got)
		}
	}
}
