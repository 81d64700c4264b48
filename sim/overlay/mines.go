package overlay

// Mines makes the product panic where a mistake of Berth's could: in Apply before and after a row is written, as a function of the
// state, so on every server and in every replay alike; where an entry's view is made, likewise; where a server puts changes into its
// feed; in the scheduler where it charges work, and over rows that its view takes in, each time; and in whatever proposes: requests,
// controllers and loops, and what these have go on beside them. They are armed until MinesVariable, in nanoseconds since 1970, of the state's time or the bubble's.
func Mines() []Edit {
	return []Edit{
		{"fsm/tables.go", "import (\n", "import (\n\t\"fmt\"\n\t\"hash/fnv\"\n\t\"os\"\n\t\"strconv\"\n\n"},
		{"fsm/tables.go", "// put stores a row,", `var minesUntil, _ = strconv.ParseInt(os.Getenv("` + MinesVariable + `"), 10, 64)

func mine(tx *Tx, key string) {
	if tx.view.TimeUnixNano() > minesUntil {
		return
	}
	h := fnv.New64a()
	fmt.Fprint(h, key, tx.view.Revision(), tx.view.Queue.Len())
	if h.Sum64()%499 == 0 {
		panic("mine at " + key)
	}
}

// put stores a row,`},
		{"fsm/tables.go", "\tstore.Put(&tx.Tx, tx.view, t, key, row)\n", "\tmine(tx, key)\n\tstore.Put(&tx.Tx, tx.view, t, key, row)\n\tmine(tx, key)\n"},
		{"fsm/tables.go", "\tstore.Remove(&tx.Tx, tx.view, t, key)\n", "\tmine(tx, key)\n\tstore.Remove(&tx.Tx, tx.view, t, key)\n\tmine(tx, key)\n"},
		// Where the view is made, but not where nothing has changed: then it is that of the entry before.
		{"fsm/fault.go", "\treturn outcome{tx, s.live.freeze(), results}, nil\n", "\tmineView(tx)\n\treturn outcome{tx, s.live.freeze(), results}, nil\n"},
		{"fsm/tables.go", "// remove deletes the row", `func mineView(tx *Tx) {
	if tx.view.TimeUnixNano() > minesUntil || len(tx.Changes()) == 0 {
		return
	}
	h := fnv.New64a()
	fmt.Fprint(h, "view", tx.view.Revision(), tx.view.Index())
	if h.Sum64()%997 == 0 {
		panic("mine at a view")
	}
}

// remove deletes the row`},
		{"fsm/fault.go", "\tf()\n}\n\n// faultOf is", "\tif part == \"feed\" && s.live.TimeUnixNano() <= minesUntil && s.live.Index()%997 == 0 {\n\t\tpanic(\"mine at the feed\")\n\t}\n\tf()\n}\n\n// faultOf is"},
		{"sched/faulty.go", "\tif s.taking != nil {\n\t\ts.taking(row)\n\t}\n", "\tmineRow(row)\n\tif s.taking != nil {\n\t\ts.taking(row)\n\t}\n"},
		{"sched/faulty.go", "// takeChange takes", `func mineRow(row any) {
	about := aboutRow(row)
	if about == "" || time.Now().UnixNano() > minesUntil {
		return
	}
	h := fnv.New64a()
	h.Write([]byte(about))
	if h.Sum64()%61 == 0 {
		panic("mine at " + about)
	}
}

// takeChange takes`},
		{"sched/faulty.go", "import (\n\t\"fmt\"\n", "import (\n\t\"fmt\"\n\t\"hash/fnv\"\n\t\"time\"\n"},
		{"server/schedule.go", "\t\t\tresult, err = wait(ctx)\n", "\t\t\tmine(199)\n\t\t\tresult, err = wait(ctx)\n"},
		{"server/workloads.go", "\t\t\tresults, err = wait(ctx)\n", "\t\t\tmine(199)\n\t\t\tresults, err = wait(ctx)\n"},
		{"sched/meter.go", "package sched\n", mined("package sched\n")},
		{"sched/meter.go", "\tm.left -= int64(units)\n\tif m.charged", "\tmine(4999)\n\tm.left -= int64(units)\n\tif m.charged"},
		{"server/propose.go", "// Propose carries commands out", mined("") + "// Propose carries commands out"},
		{"server/propose.go", "import (\n", "import (\n\t\"os\"\n\t\"strconv\"\n\t\"sync/atomic\"\n"},
		{"server/propose.go", "ps ...fsm.Proposal) ([]fsm.Result, error) {\n\tif at, ok", "ps ...fsm.Proposal) ([]fsm.Result, error) {\n\tmine(199)\n\tif at, ok"},
	}
}

// mined is a function that panics at one call of so many. A world runs on one processor, so its calls are counted in the same order
// in every run.
func mined(begin string) string {
	imports := ""
	if begin != "" {
		imports = "import (\n\t\"os\"\n\t\"strconv\"\n\t\"sync/atomic\"\n\t\"time\"\n)\n\n"
	}
	return begin + imports + `var (
	minesUntil, _ = strconv.ParseInt(os.Getenv("` + MinesVariable + `"), 10, 64)
	minesPassed   atomic.Uint64
)

func mine(oneIn uint64) {
	if time.Now().UnixNano() > minesUntil {
		return
	}
	if n := minesPassed.Add(1) * 0x9e3779b97f4a7c15; (n^n>>32)%oneIn == 0 {
		panic("mine")
	}
}

`
}

// MinesVariable is the environment's variable that has the time until which mines are armed.
const MinesVariable = "BERTH_SIM_MINES_UNTIL"
