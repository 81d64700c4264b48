package victims

import (
	"testing"

	"github.com/berth-dev/berth/model"
)

func TestMoreImportant(t *testing.T) {
	// PR7: each is more important than all that follow.
	order := []Pod{
		{Priority: 5, StartUnixNano: model.NeverStarted, UID: "z"},
		{Priority: 1, StartUnixNano: 10, UID: "z"}, {Priority: 1, StartUnixNano: 20, UID: "a"},
		{Priority: 1, StartUnixNano: 20, UID: "b"},
		{Priority: 1, StartUnixNano: model.NeverStarted, UID: "a"}, {Priority: 1, StartUnixNano: model.NeverStarted,
			UID: "b"},
		{Priority: -1, StartUnixNano: 1, UID: "a"},
	}
	for i := range order {
		for j := range order {
			if got := MoreImportant(&order[i], &order[j]); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("MoreImportant(%d, %d) = %d", i, j, got)
			}
		}
	}
}
