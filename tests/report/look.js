// What a reader of the page meets, as plain values. Evaluated by test_pages.py in Chromium.
(() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = (top, below) => top.slice(0, 3).map((part, at) => part * top[3] + below[at] * (1 - top[3]));
  // The background behind an element: that of all its ancestors, blended.
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    const own = parse(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
  };
  const light = (color) => {
    const [r, g, b] = color.map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const shown = (element) => element.getClientRects().length > 0;
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !shown(element) || element.closest("script, style, title")) continue;
    const style = getComputedStyle(element);
    const color = parse(element.closest("svg") ? style.fill : style.color);
    const ground = behind(element);
    const ratio = contrast(over(color, ground), ground);
    if (ratio < 4.5) low.push(`${node.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  // Of a plot the curves, which have to be told from the background too.
  for (const line of document.querySelectorAll("svg [style*='stroke: var']")) {
    if (!shown(line) || /--line/.test(line.getAttribute("style"))) continue;
    const ratio = contrast(parse(getComputedStyle(line).stroke).slice(0, 3), behind(line));
    if (ratio < 3) low.push(`a curve: ${ratio.toFixed(2)}`);
  }
  const root = document.documentElement;
  const edge = root.clientWidth;
  const wide = [...document.querySelectorAll("main *, footer *")].filter(
    (element) => shown(element) && !element.closest(".scroll table, svg") && element.getBoundingClientRect().right > edge + 1,
  );
  const banner = document.querySelector("body > main").firstElementChild;
  const box = banner.getBoundingClientRect();
  return {
    low,
    overflow: root.scrollWidth - edge,
    wide: wide.map((element) => element.outerHTML.slice(0, 120)),
    ground: getComputedStyle(document.body).backgroundColor,
    banner: { className: banner.className, top: box.top, bottom: box.bottom, text: banner.innerText },
    headings: [...document.querySelectorAll("h1, h2, h3, h4")].map((heading) => Number(heading.tagName[1])),
    plots: [...document.querySelectorAll("svg")].filter(shown).map((svg) => ({
      label: svg.getAttribute("aria-label"),
      role: svg.getAttribute("role"),
      texts: [...svg.querySelectorAll("text")].map((text) => text.textContent.trim()).filter(Boolean),
      smallest: Math.min(...[...svg.querySelectorAll("text")].map((text) => text.getBoundingClientRect().height)),
    })),
    heads: [...document.querySelectorAll("th")].every((head) => head.scope),
    tables: [...document.querySelectorAll("table")].every((table) => table.querySelector("thead th") && table.closest(".scroll[tabindex='0'][aria-label]")),
    ids: [...document.querySelectorAll("[id]")].map((element) => element.id),
    links: [...document.querySelectorAll("a")].every((link) => document.getElementById(link.getAttribute("href").slice(1))),
  };
})()
