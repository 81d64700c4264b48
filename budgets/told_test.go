package budgets

import "testing"

func TestShownBudgets(t *testing.T) {
	mine := func(namespace string) bool { return namespace == "mine" }
	for text, want := range map[string]string{
		"":                                    "",
		"0/3 nodes: no room":                  "0/3 nodes: no room",
		"2 " + Barred("mine/web", 3, 2) + ".": "2 node(s) blocked by PodDisruptionBudget mine/web (needs 3 healthy, has 2).",
		"2 " + Barred("team/web", 3, 2) + ", 1 " + Barred("mine/web", 1, 1) + ", 1 " + Barred("team/db", 5, -1): "2 node(s) blocked by a PodDisruptionBudget, " +
			"1 node(s) blocked by PodDisruptionBudget mine/web (needs 1 healthy, has 1), 1 node(s) blocked by a PodDisruptionBudget",
		"1 node(s) blocked by PodDisruptionBudget team/web (needs 3 hea": "1 node(s) blocked by a PodDisruptionBudget",
	} {
		if got := Shown(text, mine); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
