// What each tool does, and how often it is right, in the server's words.

// Give each button its line as a title, and show in `place` that of the one in use.
export function showAbout(tools, buttons, place) {
  const lines = buttons.map((button) => {
    const tool = tools.get(button.dataset.tool);
    if (!tool) return "";
    button.classList.toggle("experimental", tool.experimental);
    const quality = `${tool.quality[0].toUpperCase()}${tool.quality.slice(1)}`;
    const told = `${tool.does} Takes ${tool.takes}. ${quality}. ${tool.licence}.`;
    button.title = `${button.textContent}: ${told} For example: ${tool.example} → ${tool.answer}`;
    for (const event of ["pointerenter", "focus"]) {
      button.addEventListener(event, () => (place.textContent = button.title));
    }
    return button.title;
  });
  place.textContent = lines[0];
}
