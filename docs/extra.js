// A button for each command of a block with several lines; it copies the command without its comment.
const PROGRAMS = "gpuprov|ssh|scp|pip|pipx|python3|docker|podman|apt|brew|ansible[\\w-]*|git|kubectl|mkdir|cp|install|gpgv|grep|scripts/\\w+|srun|sbatch";
const COMMAND = new RegExp(`^(?:[A-Z_]+=\\S+ )*(?:${PROGRAMS})\\b.*?(?=\\s+# |\\s*$)`);

for (const code of document.querySelectorAll(".md-typeset pre > code")) {
  const lines = code.textContent.trimEnd().split("\n");
  if (code.children.length || lines.length < 2) continue; // highlighted, or one command
  code.replaceChildren(...lines.flatMap((line) => [button(line), `${line}\n`]));
}

function button(line) {
  const [command] = line.match(COMMAND) ?? [];
  const made = document.createElement("button");
  made.className = "copy-line";
  made.hidden = !command;
  made.title = `Copy: ${command}`;
  made.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command);
    made.classList.add("done");
    setTimeout(() => made.classList.remove("done"), 1500);
  });
  return made;
}
