//! Child processes, their temporary files, and names and addresses that no other test uses.

use crate::WATCHDOG;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};

/// The environment variable of a child's role.
const ROLE: &str = "FARSIDE_TEST_ROLE";

/// A child process whose output is read line by line; killed on drop.
///
/// A test program starts itself again: the child runs the test `child`, which returns at once where [`role`] is `None`.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Process {
    /// Starts this test program again, to play a role: words with blanks between.
    pub fn child(role: &str) -> Self {
        Self::start(Self::command(&[], role))
    }

    /// Returns the command that starts this test program again, through `wrapper` (a command that runs another).
    pub fn command(wrapper: &[&str], role: &str) -> Command {
        let program = std::env::current_exe().expect("the path of this program");
        let program = program.to_str().expect("a path in plain letters");
        let arguments = [program, "child", "--exact", "--nocapture", "--test-threads=1"];
        let words = [wrapper, &arguments].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env(ROLE, role);
        command
    }

    /// Starts a command as a child with pipes as input and output.
    pub fn start(command: Command) -> Self {
        Self::try_start(command).expect("a child process")
    }

    /// Starts a command as a child, if the system can.
    ///
    /// # Errors
    /// Those of the system, such as a program that this user may not run.
    pub fn try_start(mut command: Command) -> std::io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| {
                let _ = sender.send(line);
            });
        });
        Ok(Self { child, lines, said: Vec::new() })
    }

    /// Returns the next line of its output.
    pub fn line(&mut self) -> String {
        let Ok(line) = self.lines.recv_timeout(WATCHDOG) else {
            let _ = self.child.kill();
            let errors = self.errors();
            panic!("no further line, after {:?}: {errors}", self.said);
        };
        self.said.push(line.clone());
        line
    }

    /// Returns the rest of the next line that has `word`.
    pub fn hear(&mut self, word: &str) -> String {
        loop {
            if let Some((_, rest)) = self.line().split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Returns all lines so far.
    pub fn said(&mut self) -> &[String] {
        self.said.extend(self.lines.try_iter());
        &self.said
    }

    /// Writes a line to its input.
    pub fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("an input"), "{line}")
            .expect("a child that reads");
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether it has not ended.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("to signal a child");
    }

    /// Stops it (SIGSTOP), and waits until it has stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stopped = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED);
        assert!(stopped.expect("a child").is_some_and(|(_, status)| status.stopped()));
    }

    /// Continues it (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it (SIGKILL), and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("to kill a child");
        self.wait();
    }

    /// Closes its input, and waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("to wait for a child")
    }

    /// Waits for its end. Returns whether it succeeded.
    pub fn succeeds(mut self) -> bool {
        self.wait().success()
    }

    /// Waits for its end. Returns its exit code and its standard error, if that is a pipe.
    pub fn end(mut self) -> (Option<i32>, String) {
        let errors = self.errors();
        (self.wait().code(), errors)
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut text).expect("text");
        }
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the words of this process's role; `None` unless it is a child.
pub fn role() -> Option<Vec<String>> {
    let role = std::env::var(ROLE).ok()?;
    Some(role.split(' ').map(str::to_owned).collect())
}

/// Prints a line for the parent process.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").expect("a parent that reads");
    out.flush().expect("a parent that reads");
}

/// Waits for a line of the parent process, or its end. Returns the line.
pub fn await_parent() -> String {
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    line.trim().to_owned()
}

/// Returns a name that no other test or run uses.
pub fn unique_name(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns an address of the loopback interface that was free a moment ago.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address")
}

/// A temporary folder of a test, deleted on drop.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a folder.
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(unique_name("farside-test"));
        std::fs::create_dir(&path).expect("a new folder");
        Self(path)
    }

    /// Returns the path of the folder itself.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file in it, which need not exist.
    pub fn path(&self, file: &str) -> String {
        self.0.join(file).display().to_string()
    }

    /// Writes a file, and returns its path.
    pub fn file(&self, file: &str, bytes: &[u8]) -> String {
        let path = self.path(file);
        std::fs::write(&path, bytes).expect("to write a file");
        path
    }
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
