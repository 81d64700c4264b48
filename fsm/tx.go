package fsm

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/queue"
	"github.com/berth-dev/berth/store"
)

// Tx is what a command may use while it is applied: the state, the entry's
// time and who proposed it.
type Tx struct {
	User   string
	Groups []string

	store.Tx
	view       *live
	checkpoint bool
	// replaced is the revision from which the state goes on that a restore has
	// put in the place of the last; 0: it is the same.
	replaced int64
	// walked is how many of the changes were looked at for whom they could help,
	// and work what the entry has spent on that.
	walked int
	// addressed is how many of them were looked at for the addresses of services.
	addressed int
	work      queue.Work

	began        int64 // the state's work, see spent
	beganBudgets int64
	bill         *bill
	billedBefore int     // before the command under way, see enough
	command      Command // under way
	guarded      bool    // see part
	version      int     // of the rules that the entry is to go by, see goBy
	faults       []Fault // of this entry
}

// now is the state's time. Objects carry whole seconds, as in Kubernetes.
func (tx *Tx) now() metav1.Time {
	return metav1.Time{Time: tx.view.Now().Truncate(time.Second)}
}

func (tx *Tx) nowMicro() metav1.MicroTime {
	return metav1.MicroTime{Time: tx.view.Now().Truncate(time.Microsecond)}
}

func micro(unixNano int64) *metav1.MicroTime {
	return &metav1.MicroTime{Time: time.Unix(0, unixNano).UTC().Truncate(time.Microsecond)}
}
