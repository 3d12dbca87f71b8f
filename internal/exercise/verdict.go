package exercise

// An Outcome is how a check ended.
type Outcome string

const (
	Passed Outcome = "passed"
	Open   Outcome = "open"   // the program says that it is not done yet
	Failed Outcome = "failed" // it does something else than it should
	Broken Outcome = "broken" // it does not compile, or cannot be run at all
)

// A Verdict is what a check says about the files of a task.
type Verdict struct {
	Outcome  Outcome `json:"outcome"`
	Expected string  `json:"expected,omitempty"`
	Held     string  `json:"held,omitempty"`    // what the cluster held, or what went over the wire
	Mistake  string  `json:"mistake,omitempty"` // by name, if it is a known one
	File     string  `json:"file,omitempty"`    // relative to the task's folder
	Line     int     `json:"line,omitempty"`
	Output   string  `json:"output,omitempty"` // the compiler's
}

// What tells the tests of a step that a learner's files are to be checked.
const (
	// WorkEnv is the tree with them.
	WorkEnv = "WORKSHOP_CHECK_TREE"
	// VerdictsEnv is the folder for the verdicts: <task>.json.
	VerdictsEnv = "WORKSHOP_CHECK_VERDICTS"
	// ClusterEnv names a further kwok cluster of the clone, in which the tests are to
	// run instead.
	ClusterEnv = "WORKSHOP_CHECK_CLUSTER"
	// SeedEnv chooses whether the starter or which mutant of each task is tried; SeedEnv=all tries all.
	SeedEnv = "WORKSHOP_SEED"
)

// TestName is the test of a step that checks its tasks.
const TestName = "TestExercises"
